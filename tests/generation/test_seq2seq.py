"""DeBERTa-D: cache of both attentions, from_encoder, files, generate() and learning."""

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    DebertaForSequenceClassification,
    DebertaV2ForSequenceClassification,
    EncoderDecoderCache,
)

from debertakit.generation.seq2seq import DebertaForSeq2SeqLM, DebertaSeq2SeqConfig
from debertakit.heads import DebertaForMaskedLM
from debertakit.model import DebertaModel
from tests.generation.material import padded, text, translator
from tests.models import randomise, small

NAMES = ["deberta-v3-base", "deberta-base", "deberta-v2-xlarge"]


def sources(side: str = "right") -> tuple[torch.Tensor, torch.Tensor]:
    return padded(text(3, 9), [9, 4, 6], side)


@torch.inference_mode()
def test_cached_equals_recomputed_at_every_step_past_the_tables():
    model = translator(max_position_embeddings=48, position_buckets=16)
    (source, mask), ids = sources(), text(3, 600)
    whole = model(source, mask, ids)
    states, whole = (whole.encoder_last_hidden_state,), whole.logits
    cache = model(source, mask, ids[:, :12], use_cache=True, encoder_outputs=states).past_key_values
    for t in range(12, 600):
        if t % 100 == 0:
            order = torch.tensor([[1, 2, 0], [2, 0, 1]][t // 100 % 2])
            cache.reorder_cache(order)
            ids, mask, whole, states = ids[order], mask[order], whole[order], (states[0][order],)
        step = model(None, mask, ids[:, t : t + 1], past_key_values=cache, encoder_outputs=states).logits[:, 0]
        torch.testing.assert_close(step, whole[:, t], atol=1e-5, rtol=0, msg=lambda text, t=t: f"step {t}: {text}")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("side", ["left", "right"])
@torch.inference_mode()
def test_chunks_and_padding_change_nothing(name, side):
    model = translator(name)
    (source, mask), ids = sources(side), text(3, 40)
    cache, parts = None, []
    for piece in ids.split([5, 1, 14, 20], 1):
        out = model(source, mask, piece, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        parts.append(out.logits)
    assert isinstance(cache, EncoderDecoderCache)
    for b in range(3):
        alone = model(source[b : b + 1, mask[b].bool()], None, ids[b : b + 1]).logits
        torch.testing.assert_close(torch.cat(parts, 1)[b : b + 1], alone, atol=1e-5, rtol=0)


@torch.inference_mode()
def test_no_target_token_sees_the_future_and_all_see_the_source():
    model = translator()
    source, ids = text(1, 6), text(1, 10)
    before = model(source, None, ids).logits
    changed = ids.clone()
    changed[0, 6] = (ids[0, 6] + 1) % 97 + 4
    moved = (model(source, None, changed).logits - before).abs().amax(-1)[0]
    assert moved[:6].max() == 0
    assert moved[6:].min() > 0
    changed = source.clone()
    changed[0, 5] = (source[0, 5] + 1) % 97 + 4
    assert (model(changed, None, ids).logits - before).abs().amax(-1).min() > 0


def by_the_equations(model, states: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Compute the logits of one text from the equations at the top of seq2seq.py, for v3's layout."""
    config, decoder = model.config.encoder, model.decoder
    heads, d, n = config.num_attention_heads, config.attention_head_size, len(ids)

    def split(x):
        return x.unflatten(-1, (heads, d)).transpose(0, 1)  # [heads, rows, d]

    x = model.encoder.embeddings.LayerNorm(model.encoder.embeddings.word_embeddings(ids))
    table = decoder.LayerNorm(decoder.rel_embeddings.weight)
    rows = config.relative_positions.rows(torch.arange(n)[:, None] - torch.arange(n)).long()
    for i, layer in enumerate(decoder.layer):
        q = x + decoder.position_embeddings.weight[:n] if i == 0 else x
        att = layer.attention.self
        query, key, value = split(att.query_proj(q)), split(att.key_proj(x)), split(att.value_proj(x))
        near_key, near_query = split(att.key_proj(table))[:, rows], split(att.query_proj(table))[:, rows]
        scores = query @ key.mT + torch.einsum("hid,hijd->hij", query, near_key)
        scores = scores + torch.einsum("hijd,hjd->hij", near_query, key)
        scores = (scores * (3 * d) ** -0.5).masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
        mixed = (scores.softmax(-1) @ value).transpose(0, 1).flatten(1)
        a = layer.attention.output.LayerNorm(q + layer.attention.output.dense(mixed))
        att = layer.cross_attention.self
        query, key, value = split(att.query_proj(a)), split(att.key_proj(states)), split(att.value_proj(states))
        mixed = ((query @ key.mT * d**-0.5).softmax(-1) @ value).transpose(0, 1).flatten(1)
        c = layer.cross_attention.output.LayerNorm(a + layer.cross_attention.output.dense(mixed))
        wide = torch.nn.functional.gelu(layer.intermediate.dense(c))
        x = layer.output.LayerNorm(c + layer.output.dense(wide))
    head = model.lm_predictions.lm_head
    hidden = head.LayerNorm(torch.nn.functional.gelu(head.dense(x)))
    return hidden @ model.encoder.embeddings.word_embeddings.weight.T + head.bias


@torch.inference_mode()
def test_the_decoder_is_what_its_equations_say():
    model = translator(decoder_layers=2)
    source, ids = text(1, 7), text(1, 9)
    out = model(source, None, ids)
    expected = by_the_equations(model, out.encoder_last_hidden_state[0], ids[0])
    torch.testing.assert_close(out.logits[0], expected, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_absolute_positions_enter_the_queries_of_the_first_layer():
    """Without relative positions and with equal words, only the absolute position can distinguish two tokens."""
    model = translator(relative_attention=False, pos_att_type=[], norm_rel_ebd="none")
    source, ids = text(1, 6), torch.full((1, 8), 5)
    logits = model(source, None, ids).logits[0]
    assert (logits[1:] - logits[:-1]).abs().amax(-1).min() > 1e-3
    model.decoder.position_embeddings.weight.zero_()
    logits = model(source, None, ids).logits[0]
    torch.testing.assert_close(logits[1:], logits[:-1], atol=1e-5, rtol=0)


def test_loss_is_the_mean_over_labels_and_training_computes_only_those():
    model = translator(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    source, mask = sources()
    labels = text(3, 7)
    labels[0, 4:], labels[2, 2:] = -100, -100
    shifted = model.prepare_decoder_input_ids_from_labels(labels)
    assert shifted[:, 0].tolist() == [1, 1, 1]
    assert shifted[0].tolist() == [1, *labels[0, :4].tolist(), 0, 0]
    log = model(source, mask, shifted).logits.log_softmax(-1)
    expected = -torch.stack([log[b, t, labels[b, t]] for b in range(3) for t in range(7) if labels[b, t] >= 0]).mean()
    torch.testing.assert_close(model(source, mask, labels=labels).loss, expected)
    trained = model.train()(source, mask, labels=labels)
    torch.testing.assert_close(trained.loss, expected)
    assert trained.logits.shape == (13, 101)
    trained.loss.backward()
    still = [n for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or p.grad.abs().sum() == 0)]
    assert still == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layers", [None, 1, 5])
def test_a_decoder_grows_out_of_an_encoder(tmp_path, name, layers):
    encoder = randomise(DebertaForMaskedLM(small(name, num_hidden_layers=3)))
    encoder.save_pretrained(tmp_path)
    model = DebertaForSeq2SeqLM.from_encoder(tmp_path, decoder_layers=layers)
    theirs, ours = encoder.state_dict(), model.state_dict()
    parents = {None: [0, 1, 2], 1: [2], 5: [0, 1, 1, 2, 2]}[layers]
    assert len(model.decoder.layer) == len(parents)
    for key, value in ours.items():
        if key.startswith("decoder.layer."):
            _, _, i, *rest = key.split(".")
            key = f"deberta.encoder.layer.{parents[int(i)]}." + ".".join(rest).replace("cross_attention", "attention")
        elif key == "decoder.position_embeddings.weight":
            key = "deberta.embeddings.position_embeddings.weight"
        elif key.startswith("decoder."):
            key = key.replace("decoder", "deberta.encoder")
        elif key.startswith("encoder."):
            key = f"deberta.{key.removeprefix('encoder.')}"
        assert torch.equal(value, theirs[key]), key
    ids = text(1, 5)
    assert torch.equal(model.encoder(ids)[0], encoder.deberta(ids)[0])


def test_files_come_back_and_the_encoder_is_an_ordinary_deberta(tmp_path):
    stocks = [DebertaV2ForSequenceClassification, DebertaForSequenceClassification, DebertaV2ForSequenceClassification]
    for name, stock in zip(NAMES, stocks, strict=True):
        model = translator(name, decoder_layers=3)
        model.generation_config.num_beams = 3
        model.save_pretrained(tmp_path / name)
        again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / name)
        assert isinstance(again, DebertaForSeq2SeqLM)
        assert isinstance(AutoConfig.from_pretrained(tmp_path / name), DebertaSeq2SeqConfig)
        assert again.generation_config.num_beams == 3
        assert again.config.to_dict()["encoder"] == {**model.config.to_dict()["encoder"], "dtype": "float32"}
        for key, value in model.state_dict().items():
            assert torch.equal(again.state_dict()[key], value)
        model.encoder.save_pretrained(tmp_path / name / "encoder")
        ids = text(2, 8)
        ours = DebertaModel.from_pretrained(tmp_path / name / "encoder").eval()(ids)[0]
        assert torch.equal(ours, model.encoder(ids)[0])
        theirs, report = stock.from_pretrained(tmp_path / name / "encoder", output_loading_info=True)
        assert all(key.startswith(("pooler", "classifier")) for key in report["missing_keys"])
        hidden = theirs.deberta.eval()(ids, torch.ones_like(ids)).last_hidden_state
        torch.testing.assert_close(hidden, ours, atol=1e-4, rtol=1e-4)


def test_the_vocabulary_can_grow():
    model = translator()
    model.resize_token_embeddings(110)
    assert model.config.vocab_size == 110
    assert model(text(1, 4), None, text(1, 3)).logits.shape == (1, 3, 110)


# ----------------------------------------------------------------------------------------------- generate()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("beams", [1, 4])
@torch.inference_mode()
def test_generate_equals_recomputing_and_one_by_one(side, beams):
    model = translator()
    source, mask = sources(side)
    settings = {"max_new_tokens": 15, "do_sample": False, "num_beams": beams, "eos_token_id": None}
    together = model.generate(source, attention_mask=mask, **settings)
    assert torch.equal(together, model.generate(source, attention_mask=mask, use_cache=False, **settings))
    for b in range(3):
        assert torch.equal(together[b : b + 1], model.generate(source[b : b + 1, mask[b].bool()], **settings))
    if beams == 1:
        ids = torch.ones(3, 1, dtype=torch.long)
        for _ in range(15):
            ids = torch.cat([ids, model(source, mask, ids).logits[:, -1:].argmax(-1)], 1)
        assert torch.equal(together, ids)
        assert len(ids.unique()) > 8


@torch.inference_mode()
def test_sampling_and_a_forced_beginning():
    model = translator()
    source = text(1, 6)

    def drawn(**settings):
        torch.manual_seed(1)
        return model.generate(source, max_new_tokens=10, do_sample=True, top_k=20, top_p=0.9, **settings)

    assert torch.equal(drawn(), drawn(use_cache=False))
    begun = torch.tensor([[1, 33, 34]])
    written = model.generate(source, decoder_input_ids=begun, max_new_tokens=6, do_sample=False)
    assert written[0, :3].tolist() == [1, 33, 34]
    ids = begun
    for _ in range(6):
        ids = torch.cat([ids, model(source, None, ids).logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(written, ids[:, : written.shape[1]])


@pytest.mark.slow
def test_it_learns_twenty_pairs_by_heart():
    config = small(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, hidden_size=64)
    model = DebertaForSeq2SeqLM(DebertaSeq2SeqConfig(encoder=config, decoder_layers=2))
    lengths = [3 + i % 6 for i in range(20)]
    source, mask = padded(text(20, 8), lengths, "right")
    labels = text(20, 7)
    for b in range(20):
        labels[b, 2 + b % 5], labels[b, 3 + b % 5 :] = 2, -100
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(80):
        loss = model(source, mask, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    written = model.eval().generate(source, attention_mask=mask, max_new_tokens=7, do_sample=False)
    for b in range(20):
        expected = labels[b][labels[b] >= 0].tolist()
        assert written[b, 1 : 1 + len(expected)].tolist() == expected
