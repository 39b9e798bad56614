"""Span infilling on the pretraining loop: what encoder and decoder read, the loss, and a run."""

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

import debertakit.generation.seq2seq  # noqa: F401  makes deberta-d known to transformers
from debertakit.objectives.base import Context
from debertakit.objectives.joint import JointObjectives
from debertakit.pretraining.families import make_backbone
from debertakit.pretraining.loop import pretrain
from debertakit.pretraining.models import make_model
from debertakit.pretraining.recipes.generative import tiny_d
from debertakit.pretraining.settings import override
from debertakit.text.packing import Packing
from tests.pretraining.material import make_corpus


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


def config(*assignments: str):
    shape = ["num_hidden_layers=1", "decoder_layers=1", "hidden_size=32", "num_attention_heads=2"]
    pace = ["steps=8", "log_every=4", "evaluate_every=8", "checkpoint_every=4", "optimizer.warmup_steps=4"]
    sizes = ["data.max_length=32", "data.step_tokens=256", "data.micro_tokens=256", "evaluate_tokens=256"]
    sizes += ["precision=fp32"]
    return override(tiny_d(), [*(f"model.{field}" for field in shape), *pace, *sizes, *assignments])


def test_a_span_leaves_one_mask_and_the_decoder_writes_the_text(material):
    corpus, tokenizer = material
    batch = Packing(corpus.train, 32, 256, 0).batch(0, 0, 1)
    module = JointObjectives(make_backbone(make_model(config(), tokenizer)), config().objectives)
    objective = module.objectives["infilling"]
    view = objective.build_view(batch, Context(corpus.train, tiny_d().masking, 0), 0.0)
    assert view.written is not None
    assert view.written.causal
    assert torch.equal(view.written.ids, torch.from_numpy(batch.input_ids))
    before, after = (half.ids.split(half.lengths.tolist()) for half in (view.written, view))
    for whole, holes in zip(before, after, strict=True):
        assert not ((holes[1:] == tokenizer.mask_token_id) & (holes[:-1] == tokenizer.mask_token_id)).all()
        left = [token for token in holes.tolist() if token != tokenizer.mask_token_id]
        position = 0
        for token in left:  # what is left stands in the text, in this order
            position = whole.tolist().index(token, position) + 1
    hidden = len(view.masked.targets)
    assert hidden == pytest.approx(0.3 * (len(batch.input_ids) - 2 * len(batch.lengths)), rel=0.15)
    targets = objective.targets(view)
    assert torch.equal(targets.labels, torch.cat([text[1:] for text in before]))


def test_the_loss_is_that_of_the_model_itself(material):
    corpus, tokenizer = material
    module = JointObjectives(make_backbone(make_model(config(), tokenizer)), config().objectives).eval()
    batch = Packing(corpus.train, 32, 256, 0).batch(0, 0, 1)
    part = module.prepare(batch, Context(corpus.train, config().masking, 0), 0.0)
    loss, _ = module(part, torch.tensor([float(part.counts()[0])]))
    view = part.views["infilled"]
    sources = torch.nn.utils.rnn.pad_sequence(view.ids.split(view.lengths.tolist()), batch_first=True)
    texts = view.written.ids.split(view.written.lengths.tolist())
    labels = torch.nn.utils.rnn.pad_sequence([text[1:] for text in texts], batch_first=True, padding_value=-100)
    mask = torch.arange(sources.shape[1]) < view.lengths[:, None]
    torch.testing.assert_close(loss, module.model(sources, mask, labels=labels).loss)


@pytest.mark.slow
def test_a_run_learns_and_leaves_a_model_that_loads(material, tmp_path):
    corpus, tokenizer = material
    figures = pretrain(config("steps=40"), corpus, tokenizer, tmp_path)
    assert figures["perplexity"] < 0.5 * len(tokenizer)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    assert model.config.decoder_start_token_id == tokenizer.cls_token_id
    written = model.generate(**tokenizer("the cat [MASK] the house", return_tensors="pt"), max_new_tokens=8)
    assert written.shape[1] <= 9
