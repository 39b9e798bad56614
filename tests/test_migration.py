"""docs/migration.md: both sides of each row of the first table agree, and the commands of the page exist."""

import re
import shlex
from pathlib import Path

import pytest
import torch
import transformers

import debertakit
from tests import tiny
from tests.commands import check

PAGE = (Path(__file__).parents[1] / "docs" / "migration.md").read_text(encoding="utf-8")
CELLS = re.findall(r"^\| `(.+)` \| `(.+)` \|$", PAGE.partition("\n\n## From Microsoft")[0], re.MULTILINE)
OURS = re.findall(r"^\| .+ \| `((?:deberta |--).+)` \|$", PAGE.partition("## From Microsoft")[2], re.MULTILINE)


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    place = tmp_path_factory.mktemp("migration")
    heads = {"classifier": "SequenceClassification", "tagger": "TokenClassification", "answerer": "QuestionAnswering"}
    shape = {"answerer": {"num_labels": 2}}
    found = {name: str(tiny.with_head(place / name, head, **shape.get(name, {}))) for name, head in heads.items()}
    found["model"] = str(tiny.deberta(place / "model"))
    public = {name: getattr(debertakit, name) for name in debertakit.__all__}
    autos = {name: getattr(transformers, name) for name in set(re.findall(r"\bAuto\w+", PAGE))}
    text = "the film was good"
    batch = tiny.tokenizer()(text, return_tensors="pt")
    texts = {"text": text, "other": "a sad film in rome", "batch": batch}
    return {**found, **public, **autos, "pipeline": transformers.pipeline, **texts}


@pytest.mark.parametrize(("theirs", "ours"), CELLS)
def test_both_sides_agree(theirs, ours, names):
    with torch.inference_mode():
        expected, found = eval(theirs, dict(names)), eval(ours, dict(names))
    if isinstance(expected, torch.Tensor | float):
        torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(expected), rtol=0, atol=1e-5)
    else:
        assert found == expected


@pytest.mark.parametrize("shown", OURS)
def test_commands_exist(shown):
    start = "deberta finetune --task rte --data D --model M --out O " if shown.startswith("--") else ""
    check(shlex.split(start + shown))


def test_every_row_is_found():
    assert len(CELLS) >= 9
    assert len(OURS) >= 9
