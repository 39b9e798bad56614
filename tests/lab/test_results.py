"""Which part of an unfinished comparison is reported. Files stand for finished runs."""

from pathlib import Path

import pytest

from debertakit.files import write_json
from debertakit.lab.ablations import ABLATIONS
from debertakit.lab.compare import Prepared, check_settings, reopen
from debertakit.lab.options import CompareOptions
from debertakit.lab.plan import Contestant, Entry, share_models
from debertakit.lab.results import finished
from debertakit.pretraining.recipes import recipe


def entry(name: str) -> Entry:
    base, changes = ABLATIONS["sift"][name]
    return Entry(name, base, changes)


def prepared(out: Path, *names: str) -> Prepared:
    options = CompareOptions(seeds=3, tasks="cola,rte", data=out)
    return Prepared(out, "text.txt", options, [Contestant(name, recipe("tiny"), 1) for name in names], {})


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}", encoding="utf-8")


def test_only_what_every_recipe_has_is_compared(tmp_path):
    whole = prepared(tmp_path, "a", "b", "c")
    for name, seeds in {"a": (0, 1, 2), "b": (0, 1), "c": ()}.items():
        for seed in seeds:
            touch(whole.measures(name, seed))
            touch(whole.task("cola", name, seed) / "metrics.json")
    touch(whole.task("rte", "a", 0) / "metrics.json")
    part = finished(whole)
    assert [each.recipe for each in part.contestants] == ["a", "b"]
    assert part.seeds == [0, 1]
    assert part.tasks == ["cola"]
    assert part.missing == ["the recipe c", "seed 2", "the task rte"]


def test_nothing_to_compare_is_an_error(tmp_path):
    whole = prepared(tmp_path, "a", "b")
    touch(whole.measures("b", 0))
    with pytest.raises(ValueError, match=r"needs runs of a and of another recipe .* finished: a 0 of 3, b 1 of 3"):
        finished(whole)
    touch(whole.measures("a", 1))  # another seed
    with pytest.raises(ValueError, match="with the same seed"):
        finished(whole)
    with pytest.raises(ValueError, match="no finished run to report yet"):
        reopen([], "text.txt", tmp_path, CompareOptions())


def test_rows_that_differ_in_fine_tuning_share_a_model(tmp_path):
    names = list(ABLATIONS["sift"])
    entries = [*map(entry, names), Entry("no EMD", "tiny", ("model.emd_steps=0",))]
    rows = share_models([Contestant(each.name, each.config, 1) for each in entries], entries)
    assert [each.trained_as for each in rows] == ["", *[names[0]] * 3, ""]
    assert [dict(each.finetuning) for each in rows[:3]] == [
        {"sift": True, "sift_lambda": 5.0},
        {},
        {"sift": True, "sift_lambda": 1.0},
    ]
    whole = Prepared(tmp_path, "text.txt", CompareOptions(), rows, {})
    assert whole.run(names[2], 0) == whole.run(names[0], 0) != whole.run("no EMD", 0)
    assert whole.task("rte", names[2], 0) != whole.task("rte", names[0], 0)
    assert [each.recipe for each in whole.trained] == [names[0], "no EMD"]


def test_a_comparison_can_grow(tmp_path):
    settings = {"recipes": ["a", "b"], "tokenizer": None, "seeds": 2, "tasks": None, "budget": "1M-tokens"}
    write_json(tmp_path / "settings.json", settings)
    check_settings(tmp_path, {**settings, "seeds": 3, "tasks": "cola"})
    for change in ({"budget": "2M-tokens"}, {"recipes": ["a", "b", "c"]}):
        with pytest.raises(ValueError, match="another comparison"):
            check_settings(tmp_path, {**settings, **change})
    settings["tokenizer"] = "bpe"
    write_json(tmp_path / "settings.json", settings)
    check_settings(tmp_path, {**settings, "recipes": ["a", "b", "c"]})
    with pytest.raises(ValueError, match="another comparison"):
        check_settings(tmp_path, {**settings, "recipes": ["b", "a"]})
