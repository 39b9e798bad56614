"""Autoregressive DeBERTa: the cache, the mask, padding, and transformers' generate() over them."""

import itertools

import pytest
import torch
from transformers import DynamicCache, TextStreamer

from debertakit.generation.causal import DebertaForCausalLM
from debertakit.heads import DebertaForMaskedLM
from debertakit.objectives import Objectives
from debertakit.objectives.base import View
from debertakit.objectives.joint import JointObjectives, JointPart
from debertakit.padding import pack_input
from debertakit.pretraining.families import make_backbone
from tests.generation.material import VARIANTS, padded, text, writer
from tests.models import randomise, small


def naive(model, ids: torch.Tensor, steps: int, **kwargs) -> torch.Tensor:
    """Decode greedily without a cache."""
    for _ in range(steps):
        ids = torch.cat([ids, model(ids, **kwargs).logits[:, -1:].argmax(-1)], 1)
    return ids


# ------------------------------------------------------------------------------------------------------------ cache


@torch.inference_mode()
def test_cached_equals_recomputed_at_every_step_past_the_table():
    """Decode 600 tokens one by one, with reordered caches, causal and with prefix, far past the relative table."""
    model = writer(max_position_embeddings=48, position_buckets=16)
    ids, prefix = text(3, 600), torch.tensor([0, 9, 12])
    whole = model(ids, prefix_lengths=prefix).logits
    first = model(ids[:, :12], use_cache=True, prefix_lengths=prefix)
    cache = first.past_key_values
    torch.testing.assert_close(first.logits, whole[:, :12], atol=1e-5, rtol=0)
    for t in range(12, 600):
        if t % 50 == 0:  # as beam search does: beams change places, one is dropped and one doubled
            order = torch.tensor([[1, 2, 0], [2, 2, 1], [0, 1, 1]][t // 50 % 3]) if t < 300 else torch.tensor([1, 0, 2])
            cache.reorder_cache(order)
            ids, whole, prefix = ids[order], whole[order], prefix[order]
        step = model(ids[:, t : t + 1], past_key_values=cache, prefix_lengths=prefix).logits[:, 0]
        torch.testing.assert_close(step, whole[:, t], atol=1e-5, rtol=0, msg=lambda text, t=t: f"step {t}: {text}")
    assert cache.get_seq_length() == 600


@pytest.mark.parametrize("variant", VARIANTS)
@torch.inference_mode()
def test_chunks_of_any_size_give_the_same(variant):
    near = {} if variant == "absolute" else {"max_position_embeddings": 32}
    model = writer(variant, **near, **({} if variant == "v1" else {"position_buckets": 8}))
    ids = text(2, 60)
    whole = model(ids).logits
    cache = DynamicCache()
    parts = [model(piece, past_key_values=cache).logits for piece in ids.split([7, 1, 20, 2, 30], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-5, rtol=0)


@torch.inference_mode()
def test_reordered_and_cropped_caches_are_those_of_the_reordered_texts():
    model = writer()
    ids, more, order = text(3, 20), text(3, 4), torch.tensor([2, 0, 0])
    cache = model(ids, use_cache=True).past_key_values
    cache.reorder_cache(order)
    expected = model(torch.cat([ids[order], more], 1)).logits[:, 20:]
    torch.testing.assert_close(model(more, past_key_values=cache).logits, expected, atol=1e-5, rtol=0)
    cache.crop(-4)  # assisted decoding takes rejected tokens back
    torch.testing.assert_close(model(more, past_key_values=cache).logits, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("variant", VARIANTS)
@torch.inference_mode()
def test_padding_changes_no_logit(variant, side):
    model = writer(variant)
    ids, lengths = text(3, 15), [4, 11, 7]
    block, mask = padded(ids, lengths, side)
    first = model(block, mask, use_cache=True)
    more = text(3, 3)
    longer = torch.cat([mask, torch.ones(3, 3, dtype=torch.long)], 1)
    second = model(more, longer, past_key_values=first.past_key_values)
    for b, n in enumerate(lengths):
        alone = model(torch.cat([ids[b : b + 1, :n], more[b : b + 1]], 1)).logits[0]
        torch.testing.assert_close(first.logits[b][mask[b].bool()], alone[:n], atol=1e-5, rtol=0)
        torch.testing.assert_close(first.logits[b, -1], alone[n - 1], atol=1e-5, rtol=0)  # what generate() reads
        torch.testing.assert_close(second.logits[b], alone[n:], atol=1e-5, rtol=0)


def test_a_mask_of_another_length_is_refused():
    model = writer()
    cache = model(text(1, 4), use_cache=True).past_key_values
    with pytest.raises(ValueError, match=r"\[1, 6\], got \[1, 2\]; it covers the 4 tokens in the cache too"):
        model(text(1, 2), torch.ones(1, 2), past_key_values=cache)


# ------------------------------------------------------------------------------------------- who sees whom, and loss


@pytest.mark.parametrize("variant", VARIANTS)
@torch.inference_mode()
def test_no_token_sees_the_future(variant):
    model = writer(variant)
    ids = text(1, 12)
    changed = ids.clone()
    changed[0, 7] = (ids[0, 7] + 1) % 97 + 4
    difference = (model(ids).logits - model(changed).logits).abs().amax(-1)[0]
    assert difference[:7].max() == 0
    assert difference[7:].min() > 0


@torch.inference_mode()
def test_a_prefix_is_seen_from_both_sides_and_ends_where_it_ends():
    model = writer()
    ids = text(2, 12)
    lengths = torch.tensor([5, 3])

    def reached(column: int) -> list[list[int]]:
        """For each sequence, the rows whose prediction depends on the token at ``column``."""
        changed = ids.clone()
        changed[:, column] = (ids[:, column] + 1) % 97 + 4
        moved = (model(ids, prefix_lengths=lengths).logits - model(changed, prefix_lengths=lengths).logits).abs()
        return [(row > 0).nonzero().squeeze(-1).tolist() for row in moved.amax(-1)]

    assert reached(4) == [list(range(12)), list(range(4, 12))]  # inside the first prefix, behind the second
    assert reached(2) == [list(range(12)), list(range(12))]
    assert reached(5) == [list(range(5, 12)), list(range(5, 12))]


def test_what_the_prefix_shows_is_not_asked():
    """With a prefix of n tokens the loss is that of the tokens from n on, with padding and in training too."""
    model = writer(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    lengths = torch.tensor([4, 7, 0])
    ids, mask = padded(text(3, 12), [12, 9, 12], "left")
    for training in (False, True):
        model.train(training)
        found = model(ids, attention_mask=mask, labels=ids, prefix_lengths=lengths).loss
        logits = model.eval()(ids, attention_mask=mask, prefix_lengths=lengths).logits.log_softmax(-1)
        first = [4, 3 + 7, 1]  # columns of the first token that is asked
        asked = [(b, t) for b in range(3) for t in range(first[b], 12)]
        torch.testing.assert_close(found, -torch.stack([logits[b, t - 1, ids[b, t]] for b, t in asked]).mean())


def test_a_prefix_in_pieces_is_refused():
    model = writer()
    with pytest.raises(ValueError, match="must contain the whole prefix"):
        model(text(1, 4), prefix_lengths=torch.tensor([6]))
    cache = model(text(1, 4), use_cache=True).past_key_values
    with pytest.raises(ValueError, match="must contain the whole prefix"):
        model(text(1, 4), past_key_values=cache, prefix_lengths=torch.tensor([6]))


def test_a_convolution_reads_the_next_token_and_is_refused():
    with pytest.raises(ValueError, match="convolution"):
        DebertaForCausalLM(small("deberta-v2-xlarge"))


@pytest.mark.parametrize("side", ["left", "right"])
def test_loss_is_the_mean_over_real_next_tokens(side):
    model = writer()
    ids, lengths = text(3, 9), [5, 9, 2]
    block, mask = padded(ids, lengths, side)
    expected = []
    for b, n in enumerate(lengths):
        log = model(ids[b : b + 1, :n]).logits[0].log_softmax(-1)
        expected += [-log[t, ids[b, t + 1]] for t in range(n - 1)]
    labels = block.masked_fill(mask == 0, -100)
    torch.testing.assert_close(model(block, mask, labels=labels).loss, torch.stack(expected).mean())
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    trained = model.train()(block, mask, labels=labels)
    torch.testing.assert_close(trained.loss, torch.stack(expected).mean())
    assert trained.logits.shape == (sum(lengths) - 3, 101)  # only what is scored


@pytest.mark.parametrize("variant", ["v3", "emd"])
def test_absolute_positions_learn_where_they_are_read(variant):
    model = writer(variant).train()
    ids = text(2, 6)
    model(ids, labels=ids).loss.backward()
    still = [n for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or p.grad.abs().sum() == 0)]
    assert still == []
    table = model.deberta.embeddings.position_embeddings.weight
    assert (table.grad is not None) == (variant == "emd")


def test_one_checkpoint_fills_masks_and_writes(tmp_path):
    masked = randomise(DebertaForMaskedLM(small()))
    masked.save_pretrained(tmp_path)
    model = DebertaForCausalLM.from_pretrained(tmp_path).eval()
    model.generation_config.max_new_tokens = 7
    ids = text(1, 8)
    assert torch.equal(model.predict(pack_input(model.config, ids, None)), masked(ids).logits[0])
    model.save_pretrained(tmp_path / "again")
    again = DebertaForMaskedLM.from_pretrained(tmp_path / "again")
    assert all(
        torch.equal(a, b) for a, b in zip(again.state_dict().values(), masked.state_dict().values(), strict=True)
    )
    assert DebertaForCausalLM.from_pretrained(tmp_path / "again").generation_config.max_new_tokens == 7


@pytest.mark.parametrize("variant", ["v3", "emd"])
@torch.inference_mode()
def test_the_loss_is_that_of_pretraining(variant):
    """The objective's packed path computes the same loss as this model."""
    model = writer(variant)
    module = JointObjectives(make_backbone(model), Objectives(mlm=0.0, arlm=1.0)).eval()
    lengths = [7, 10, 4]
    block, mask = padded(text(3, 10), lengths, "right")
    view = View(block[mask.bool()], torch.tensor(lengths, dtype=torch.int32), causal=True)
    part = JointPart({"causal": view}, {"arlm": module.objectives["arlm"].targets(view)})
    loss, _ = module(part, torch.tensor([18.0]))
    torch.testing.assert_close(loss, model(block, mask, labels=block.masked_fill(mask == 0, -100)).loss)


def test_attentions_and_hidden_states_of_a_padded_batch():
    model = writer()
    ids = text(2, 6)
    block, mask = padded(ids, [4, 6], "left")
    out = model(block, mask, output_attentions=True, output_hidden_states=True)
    alone = model(ids[:1, :4], output_attentions=True, output_hidden_states=True)
    torch.testing.assert_close(out.attentions[1][0, :, 2:, 2:], alone.attentions[1][0])
    assert out.attentions[1][0, :, :2].abs().max() == 0
    torch.testing.assert_close(out.hidden_states[-1][0, 2:], alone.hidden_states[-1][0])


# ----------------------------------------------------------------------------------------------- generate()


@torch.inference_mode()
def test_greedy_equals_the_naive_loop():
    model = writer()
    ids = text(2, 5)
    written = model.generate(ids, max_new_tokens=30, do_sample=False)
    assert torch.equal(written, naive(model, ids, 30))
    assert len(written[0].unique()) > 5  # it is no loop of one token


@torch.inference_mode()
def test_prefix_mode_equals_the_naive_loop_and_differs_from_causal():
    model = writer()
    ids, lengths = text(2, 6), torch.tensor([6, 6])
    written = model.generate(ids, max_new_tokens=20, do_sample=False, prefix_lengths=lengths)
    assert torch.equal(written, naive(model, ids, 20, prefix_lengths=lengths))
    assert not torch.equal(written, model.generate(ids, max_new_tokens=20, do_sample=False))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}, {"prefix": True}, {"num_beams": 3, "prefix": True}])
@torch.inference_mode()
def test_a_batch_of_different_prompts_equals_one_by_one(side, settings):
    model = writer()
    settings = dict(settings)
    prefix = settings.pop("prefix", False)
    ids, lengths = text(3, 9), [2, 9, 5]
    block, mask = padded(ids, lengths, side)

    def written(prompt, mask):
        given = {"prefix_lengths": mask.sum(-1)} if prefix else {}
        return model.generate(
            prompt, attention_mask=mask, max_new_tokens=12, do_sample=False, pad_token_id=0, **given, **settings
        )[:, prompt.shape[1] :]

    together = written(block, mask)
    for b, n in enumerate(lengths):
        assert torch.equal(together[b : b + 1], written(ids[b : b + 1, :n], torch.ones(1, n, dtype=torch.long)))


@torch.inference_mode()
def test_beams_with_cache_equal_beams_without():
    model = writer()
    ids = text(2, 5)
    settings = {"max_new_tokens": 15, "num_beams": 4, "num_return_sequences": 4, "do_sample": False}
    cached = model.generate(ids, **settings, return_dict_in_generate=True, output_scores=True)
    again = model.generate(ids, **settings, return_dict_in_generate=True, output_scores=True, use_cache=False)
    assert torch.equal(cached.sequences, again.sequences)
    assert len({tuple(s) for s in cached.sequences.tolist()}) == 8
    # The score of a beam is the mean log-probability of its tokens, computed here from scratch.
    whole = cached.sequences[:1]
    log = model(whole).logits[0].log_softmax(-1)
    expected = sum(log[t, whole[0, t + 1]] for t in range(4, 19)) / 15
    torch.testing.assert_close(cached.sequences_scores[0], expected, atol=1e-4, rtol=0)


@torch.inference_mode()
def test_sampling_constraints_and_streaming():
    model = writer()
    ids = text(1, 5)

    def drawn(**settings):
        torch.manual_seed(3)
        return model.generate(ids, max_new_tokens=20, do_sample=True, **settings)

    assert torch.equal(drawn(top_k=10, top_p=0.9), drawn(top_k=10, top_p=0.9, use_cache=False))
    assert torch.equal(drawn(top_k=1), naive(model, ids, 20))
    even = model.generate(
        ids, max_new_tokens=10, do_sample=False, num_beams=2, prefix_allowed_tokens_fn=lambda *_: list(range(4, 101, 2))
    )
    assert (even[0, 5:] % 2 == 0).all()
    likeliest = int(naive(model, ids, 1)[0, -1])
    assert likeliest not in model.generate(ids, max_new_tokens=10, bad_words_ids=[[likeliest]])[0, 5:]
    pairs = model.generate(ids, max_new_tokens=40, do_sample=False, no_repeat_ngram_size=2)[0].tolist()
    assert len(set(itertools.pairwise(pairs))) == len(pairs) - 1

    class Letters:
        all_special_ids: list[int] = []  # noqa: RUF012

        def decode(self, ids, **kwargs):
            return "".join(f"{i} " for i in ids)

    seen = []
    streamer = TextStreamer(Letters())
    streamer.on_finalized_text = lambda piece, stream_end=False: seen.append(piece)
    whole = model.generate(ids, max_new_tokens=10, do_sample=False, streamer=streamer)
    assert [int(i) for i in "".join(seen).split()] == whole[0].tolist()
    assert len(seen) > 5  # piece by piece


@torch.inference_mode()
def test_assisted_decoding_writes_the_same():
    model, assistant = writer(), writer(num_hidden_layers=1)
    ids = text(1, 5)
    expected = naive(model, ids, 15)
    assert torch.equal(model.generate(ids, max_new_tokens=15, do_sample=False, assistant_model=assistant), expected)
    assert torch.equal(model.generate(ids, max_new_tokens=15, do_sample=False, prefill_chunk_size=2), expected)
