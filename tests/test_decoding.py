import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModel

from debertakit.config import EMD_INFORMATION
from debertakit.decoding import ALL, enhanced_mask_decoder, read_rows
from debertakit.heads import DebertaForMaskedLM, DebertaForSequenceClassification
from debertakit.model import DebertaLayer, encode
from debertakit.padding import pack_input
from tests.models import randomise, small
from tests.numpy_deberta import NumpyDeberta


@pytest.mark.parametrize("information", EMD_INFORMATION)
@pytest.mark.parametrize(("steps", "shared"), [(1, True), (2, True), (3, True), (1, False), (2, False), (3, False)])
def test_logits_equal_numpy(steps, shared, information):
    config = small(emd_steps=steps, share_emd_layers=shared, emd_information=information)
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
    decoded = enhanced_mask_decoder(model, below, None, rows, packed.layout)
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


def test_own_layers_and_information_are_saved_and_stock_loads_the_encoder(tmp_path):
    fields = {"share_emd_layers": False, "emd_steps": 3, "emd_information": "embeddings"}
    model = randomise(DebertaForMaskedLM(small(**fields)))
    model.save_pretrained(tmp_path)
    ids = torch.randint(1, 101, (1, 9))
    again = DebertaForMaskedLM.from_pretrained(tmp_path).eval()
    assert len(again.deberta.mask_decoder) == 2
    assert torch.equal(again(ids).logits, model(ids).logits)
    stock = AutoModel.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(stock(ids).last_hidden_state, model.deberta(ids).last_hidden_state, atol=1e-4, rtol=0)


def test_a_checkpoint_without_the_own_layers_loads_without_a_mask_decoder(tmp_path, caplog):
    """As stock transformers saves it: it keeps the config's fields and drops the weights that it does not know."""
    model = DebertaForMaskedLM(small(share_emd_layers=False))
    kept = {key: value for key, value in model.state_dict().items() if "mask_decoder" not in key}
    model.config.save_pretrained(tmp_path)
    save_file(kept, tmp_path / "model.safetensors")
    assert DebertaForMaskedLM.from_pretrained(tmp_path).config.emd_steps == 0
    assert "no layers for the mask decoder" in caplog.text


@pytest.mark.parametrize("head", [DebertaForMaskedLM, DebertaForSequenceClassification])
def test_the_own_layers_are_trained_only_where_they_are_used(head):
    model = head(small(share_emd_layers=False))
    assert {p.requires_grad for p in model.deberta.mask_decoder.parameters()} == {head is DebertaForMaskedLM}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"emd_information": "words"}, "choose from positions, embeddings, none"),
        ({"share_emd_layers": False, "causal_emd": True}, "needs share_emd_layers"),
        ({"position_biased_input": True}, "choose one"),
    ],
)
def test_contradictions_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        small(**fields)


def test_positions_in_the_input_go_with_a_mask_decoder_without_positions():
    model = DebertaForMaskedLM(small(position_biased_input=True, emd_information="none"))
    assert model(torch.randint(1, 101, (1, 5))).logits.isfinite().all()
