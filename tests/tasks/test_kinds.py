"""Every kind of task has an entry in every table, and its examples pass through every stage."""

from typing import get_args

import pytest
import torch

from debertakit.data.examples import EXAMPLE_CLASSES, Kind
from debertakit.loading import HEADS, load_for_training
from debertakit.tasks.batches import Collator
from debertakit.tasks.decisions import decide, row_logits
from debertakit.tasks.features import ExampleEncoder, find_labels
from debertakit.tasks.own import SCORES
from tests import tiny

KINDS = get_args(Kind)


@pytest.mark.parametrize("table", [EXAMPLE_CLASSES, HEADS, SCORES])
def test_tables_have_an_entry_for_every_kind(table):
    assert tuple(sorted(table)) == tuple(sorted(KINDS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.deberta(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("kind", KINDS)
def test_examples_become_rows_logits_predictions_and_a_score(kind, folder):
    examples, tokenizer = tiny.examples(kind), tiny.tokenizer()
    assert isinstance(examples[0], EXAMPLE_CLASSES[kind])
    labels = find_labels(kind, examples)
    rows = ExampleEncoder(kind, tokenizer, labels, 64).encode(examples).rows
    model = load_for_training(folder, kind, labels)
    logits, loss = row_logits(model, rows, kind, Collator(tokenizer, kind))
    assert torch.isfinite(torch.tensor(loss))
    predictions = decide(kind, examples, rows, logits, labels)
    score, metric = SCORES[kind]
    assert metric in score(examples, [prediction.value for prediction in predictions])
