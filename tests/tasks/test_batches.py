import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from debertakit.tasks.batches import Collator, TrainingOrder, budget_batches
from debertakit.tasks.features import ExampleEncoder, TokenRow
from tests import tiny

LENGTHS = np.random.default_rng(0).integers(3, 80, 1000).tolist()


def order(epoch, seed=0, sorted_steps=16, lengths=LENGTHS):
    sampler = TrainingOrder(lengths, 32, seed, sorted_steps)
    sampler.set_epoch(epoch)
    return list(sampler)


def padding(indices):
    steps = [[LENGTHS[i] for i in indices[k : k + 32]] for k in range(0, len(indices), 32)]
    return sum(max(step) * len(step) for step in steps) / sum(LENGTHS)


def test_an_epoch_has_every_example_once():
    for sorted_steps in (1, 16):
        assert sorted(order(0, sorted_steps=sorted_steps)) == list(range(1000))
    assert order(0, lengths=[5]) == [0]


def test_the_order_follows_from_seed_and_epoch():
    assert order(1) == order(1)
    assert order(0) != order(1)
    assert order(0, seed=1) != order(0, seed=2)


def test_sorting_inside_windows_saves_padding():
    assert padding(order(0, sorted_steps=1)) > 1.7
    assert padding(order(0, sorted_steps=16)) < 1.2
    longest = [max(LENGTHS[i] for i in order(0)[k : k + 32]) for k in range(0, 992, 32)]
    assert longest != sorted(longest)  # but not from short to long


@given(lengths=st.lists(st.integers(1, 300), max_size=60), tokens=st.integers(1, 1000))
def test_batches_keep_to_their_budget(lengths, tokens):
    batches = budget_batches(lengths, tokens)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= tokens


def test_batches_are_padded_to_their_longest_sequence():
    tokenizer = tiny.tokenizer()
    rows = ExampleEncoder("tagging", tokenizer, ("O", "B-PER", "B-LOC"), 64).encode(tiny.examples("tagging")).rows
    batch = Collator(tokenizer, "tagging")(rows[:3])
    lengths = [len(row.ids[0]) for row in rows[:3]]
    assert batch["input_ids"].shape == batch["labels"].shape == (3, max(lengths))
    assert batch["attention_mask"].sum(1).tolist() == lengths
    for row, ids, labels in zip(rows, batch["input_ids"], batch["labels"], strict=False):
        assert ids[: len(row.ids[0])].tolist() == row.ids[0]
        assert labels[: len(row.ids[0])].tolist() == row.label
        assert (labels[len(row.ids[0]) :] == -100).all()


def test_options_are_consecutive_rows_and_missing_labels_are_omitted():
    collate = Collator(tiny.tokenizer(), "choice")
    rows = [TokenRow(0, [[1, 5, 2], [1, 2]], None, 1), TokenRow(1, [[1, 6, 7, 2]], None, 0)]
    batch = collate(rows)
    assert batch["input_ids"].tolist() == [[1, 5, 2, 0], [1, 2, 0, 0], [1, 6, 7, 2]]
    assert batch["options"].tolist() == [2, 1]
    assert torch.equal(batch["labels"], torch.tensor([1, 0]))
    assert "labels" not in collate([rows[0], TokenRow(1, [[1, 2]])])
