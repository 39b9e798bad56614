import pytest
import torch

from debertakit.decoding import ALL, enhanced_mask_decoder, read_rows
from debertakit.heads import DebertaForMaskedLM
from debertakit.model import DebertaLayer, encode
from debertakit.padding import pack_input
from tests.models import randomise, small
from tests.numpy_deberta import NumpyDeberta


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_logits_equal_numpy(steps):
    config = small(emd_steps=steps)
    model = randomise(DebertaForMaskedLM(config))
    ids = torch.randint(1, 101, (1, 9))
    expected = NumpyDeberta(model.state_dict(), config).masked_lm(ids[0].numpy(), steps)
    torch.testing.assert_close(model(ids).logits[0].double(), torch.from_numpy(expected), atol=5e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["deberta-base", "deberta-v2-xlarge", "deberta-v3-base"])
def test_masked_rows_alone_give_what_all_rows_give(name):
    model = randomise(DebertaForMaskedLM(small(name)))
    ids, mask = torch.randint(1, 101, (3, 12)), torch.ones(3, 12, dtype=torch.long)
    mask[1, 7:] = 0
    packed = pack_input(model.config, ids, mask)
    rows = torch.tensor([0, 3, 11, 12, 18, 30])
    every = model.predict(packed)
    some = model.predict(packed, rows)
    torch.testing.assert_close(some, every[rows], atol=2e-5, rtol=0)


def test_decoded_and_plain_rows_together_equal_each_alone():
    model = randomise(DebertaForMaskedLM(small())).deberta
    packed = pack_input(model.config, torch.randint(1, 101, (2, 8)), None)
    masked, first = torch.tensor([1, 5, 9]), torch.tensor([0, 8])
    together = read_rows(model, packed, decoded=masked, plain=first)
    alone = read_rows(model, packed, decoded=masked)[0], read_rows(model, packed, plain=first)[1]
    for found, expected in zip(together, alone, strict=True):
        assert torch.equal(found, expected)
    torch.testing.assert_close(read_rows(model, packed, decoded=ALL)[0][masked], together[0], atol=2e-5, rtol=0)
    assert read_rows(model, packed, decoded=masked)[1] is None


def test_the_last_layer_runs_only_if_its_rows_are_requested(monkeypatch):
    model = randomise(DebertaForMaskedLM(small())).deberta
    packed = pack_input(model.config, torch.randint(1, 101, (2, 8)), None)
    depths = []
    monkeypatch.setattr(DebertaLayer, "forward", lambda self, hidden, rows, call: depths.append(self) or hidden)
    rows = torch.tensor([3])
    for requested, layers in (({"decoded": rows}, 1), ({"plain": rows}, 2), ({"decoded": rows, "plain": rows}, 2)):
        depths.clear()
        read_rows(model, packed, **requested)
        assert len(depths) == layers


def test_with_nothing_to_add_and_one_pass_it_is_the_last_layer():
    """The paper: with I = H and n = 1, the mask decoder is the ordinary decoder."""
    config = small(emd_steps=1)
    model = randomise(DebertaForMaskedLM(config)).deberta
    packed = pack_input(config, torch.randint(1, 101, (2, 8)), None)
    embedded = model.embeddings(packed.words, packed.positions)
    below = encode(model.encoder, embedded, packed.layout, config, depth=1).last
    rows = torch.arange(16)
    decoded = enhanced_mask_decoder(model.encoder, below, torch.zeros_like(below), rows, packed.layout, config)
    ordinary = encode(model.encoder, embedded, packed.layout, config).last
    torch.testing.assert_close(decoded, ordinary, atol=1e-5, rtol=0)


def test_absolute_positions_reach_the_logits_and_learn():
    model = randomise(DebertaForMaskedLM(small()))
    table = model.deberta.embeddings.position_embeddings.weight
    ids = torch.randint(1, 101, (1, 6))
    labels = torch.full_like(ids, -100)
    labels[0, 2] = 7
    model.train()(ids, labels=labels).loss.backward()
    assert table.grad[2].abs().sum() > 0
    assert table.grad[[0, 1, 3]].abs().sum() == 0  # only the masked position is decoded


def test_past_the_table_the_last_position_serves():
    model = randomise(DebertaForMaskedLM(small(max_position_embeddings=40, position_buckets=8)), 0.05)
    assert model(torch.randint(1, 101, (1, 60))).logits.isfinite().all()


def test_factorised_embeddings_work_with_the_decoder():
    model = randomise(DebertaForMaskedLM(small(embedding_size=12)))
    assert model(torch.randint(1, 101, (1, 6))).logits.shape == (1, 6, 101)
