"""The whole demo, on part of its text and with small models in place of the bundled ones."""

from dataclasses import replace

import pytest
import torch

from debertakit.bench import suites
from debertakit.bench.options import BenchOptions
from debertakit.demo import __main__ as demo
from debertakit.demo import documentation
from debertakit.heads import DebertaForMaskedLM
from tests.models import randomise, small, word_tokenizer


@pytest.fixture
def shortened(monkeypatch, tmp_path):
    """Less text, a smaller vocabulary, a few steps; folder: tmp_path/demo."""
    documents = [text for text, _ in zip(documentation.python_documentation(), range(300), strict=False)]
    monkeypatch.setattr(documentation, "python_documentation", lambda: iter(documents))
    smaller = demo.contestants(0.02)
    smaller = {name: replace(config, data=replace(config.data, vocab_size=1000)) for name, config in smaller.items()}
    monkeypatch.setattr(demo, "contestants", lambda minutes: smaller)
    monkeypatch.setenv("DEBERTAKIT_MODELS", str(tmp_path / "models"))
    return tmp_path / "demo"


def save_model(folder, words):
    tokenizer = word_tokenizer(words)
    torch.manual_seed(0)
    randomise(DebertaForMaskedLM(small(vocab_size=len(tokenizer), emd_steps=2)), 0.02).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.mark.slow
def test_the_demo_shows_every_part_and_writes_its_report(shortened, tmp_path, monkeypatch, capsys):
    save_model(
        tmp_path / "models" / "en-small", "the capital of France is a new opened test message logger email".split()
    )
    save_model(tmp_path / "models" / "zh-small", list("北京是中国的首都他毕业于清华大学"))
    monkeypatch.setattr(documentation, "PACKAGES", ("email", "logging"))
    batch = suites.batch
    monkeypatch.setattr(suites, "batch", lambda lengths: batch([min(length, 16) for length in lengths[:2]]))
    shown = demo.main(shortened, bench=BenchOptions(layers=1, seconds=0.1, quick=True))
    assert [text for text, _ in shown.masks] == [*demo.MASKED["en"], *demo.MASKED["zh"]]
    assert all(len(found) == 3 and found[0][0] >= found[-1][0] for _, found in shown.nearest)
    assert shown.tuned is not None
    assert "majority class" in shown.tuned.verdict
    assert set(shown.accuracy) == {"unigram", "DeBERTa", "BERT"}
    assert all(0 <= accuracy.top1 <= accuracy.top5 <= 1 for accuracy in shown.accuracy.values())
    assert {racer.curve[-1][0] for racer in shown.racers.values()} == {shown.steps}
    page = (shortened / "report.html").read_text(encoding="utf-8")
    for part in ("北京是[MASK]国的首都", demo.QUERIES[0], shown.tuned.verdict.split(" (")[0], "1x16", "<svg"):
        assert part in page
    assert str(shortened / "report.html") in capsys.readouterr().out


@pytest.mark.slow
def test_without_bundled_models_the_demo_pretrains_and_says_what_it_skips(shortened, monkeypatch, capsys):
    monkeypatch.setattr(demo, "inference", lambda settings: iter(()))  # the test above times for real
    shown = demo.main(shortened)
    assert "1. to 3. are skipped" in capsys.readouterr().out
    assert not shown.masks
    assert (shortened / "report.html").stat().st_size > 1000
    assert DebertaForMaskedLM.from_pretrained(shortened / "deberta").config.emd_steps == 2


def test_only_the_folder_of_an_earlier_demo_is_deleted(tmp_path):
    (tmp_path / "mine.txt").write_text("my work", encoding="utf-8")
    with pytest.raises(ValueError, match="was not written by the demo"):
        demo._empty(tmp_path)
    assert (tmp_path / "mine.txt").exists()
    (tmp_path / "MADE-BY-DEMO").write_text("", encoding="utf-8")
    demo._empty(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["MADE-BY-DEMO"]
