"""BERT, RoBERTa, ALBERT, SpanBERT, XLNet and GPT-2.

``*-base`` and ``*-large`` are the published recipes, as far as they were published (docs/family.md lists the
differences). ``*-tiny``
have the size, data and budget of ``tiny``; they differ in model, objective, masking and tokenizer. Models other than
GPT-2 use a third of DeBERTa's learning rate: the loss of BERT rose again at 3e-3 (measured). The other rates were not
tuned.
"""

from dataclasses import replace

from debertakit.objectives import Objectives
from debertakit.pretraining.recipes.deberta import tiny, with_model
from debertakit.pretraining.settings import Data, PretrainConfig
from debertakit.text.masking import Masking
from debertakit.training.optim import Optimizer

LARGE: dict[str, object] = {
    "num_hidden_layers": 24,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}


def bert_base() -> PretrainConfig:
    """BERT base: static token masks and next-sentence prediction, WordPiece, 256 x 512 tokens per step."""
    return PretrainConfig(
        name="bert-base",
        family="bert",
        model={},  # transformers' default
        objectives=Objectives(mlm=1.0, nsp=1.0),
        masking=Masking("token", dynamic=False),
        optimizer=Optimizer(lr=1e-4, warmup_steps=10_000),
        data=Data(tokenizer="wordpiece", vocab_size=30522, step_tokens=256 * 512),
    )


def bert_large() -> PretrainConfig:
    """BERT large: 24 x 1024, otherwise as bert-base."""
    return replace(bert_base(), name="bert-large", model=dict(LARGE), gradient_checkpointing=True)


def roberta_base() -> PretrainConfig:
    """RoBERTa base: dynamic masks, full sentences, no NSP, byte BPE, 8,192 x 512 tokens per step."""
    return PretrainConfig(
        name="roberta-base",
        family="roberta",
        model={"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
        masking=Masking("token"),
        optimizer=Optimizer(lr=6e-4, beta2=0.98, warmup_steps=24_000, clip=0.0),
        data=Data(tokenizer="bpe", vocab_size=50265, step_tokens=8192 * 512, mode="blocks"),
        steps=500_000,
    )


def roberta_large() -> PretrainConfig:
    """RoBERTa large: 24 x 1024, learning rate 4e-4."""
    base = with_model(roberta_base(), "roberta-large", **LARGE)
    slower = replace(base.optimizer, lr=4e-4, warmup_steps=30_000)
    return replace(base, optimizer=slower, gradient_checkpointing=True)


def albert_base() -> PretrainConfig:
    """ALBERT base: factorised embeddings, shared layers, n-gram masks, sentence order, 4,096 x 512 per step."""
    return PretrainConfig(
        name="albert-base",
        family="albert",
        model={"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "share": "all"},
        objectives=Objectives(mlm=1.0, sop=1.0),
        masking=Masking("ngram", max_ngram=3),
        optimizer=Optimizer(lr=2e-4, warmup_steps=3125),  # the paper uses LAMB, at 1.76e-3
        data=Data(tokenizer="unigram", vocab_size=30_000, step_tokens=4096 * 512),
        steps=125_000,
    )


def albert_large() -> PretrainConfig:
    """ALBERT large: 24 x 1024, all layers shared."""
    return _albert("albert-large", 24, 1024, 16)


def albert_xlarge() -> PretrainConfig:
    """ALBERT xlarge: 24 x 2048, all layers shared."""
    return _albert("albert-xlarge", 24, 2048, 16)


def albert_xxlarge() -> PretrainConfig:
    """ALBERT xxlarge: 12 x 4096, all layers shared."""
    return _albert("albert-xxlarge", 12, 4096, 64)


def spanbert_base() -> PretrainConfig:
    """SpanBERT base: geometric spans, span-boundary objective, single sequences, 256 x 512 tokens per step."""
    base = bert_base()
    return replace(
        base,
        name="spanbert-base",
        objectives=Objectives(mlm=1.0, sbo=1.0),
        masking=Masking("span", replace_by="span", span_p=0.2, max_span=10),
        optimizer=replace(base.optimizer, eps=1e-8, weight_decay=0.1),
        data=replace(base.data, vocab_size=28996),
        steps=2_400_000,
    )


def spanbert_large() -> PretrainConfig:
    """SpanBERT large: 24 x 1024, otherwise as spanbert-base."""
    return replace(spanbert_base(), name="spanbert-large", model=dict(LARGE), gradient_checkpointing=True)


def xlnet_base() -> PretrainConfig:
    """XLNet base: predicts the last sixth of a random order, in spans of 1 to 5 words, 8,192 x 512 per step."""
    return PretrainConfig(
        name="xlnet-base",
        family="xlnet",
        model={**_xlnet_shape(12, 768, 12, 3072), "dropout": 0.1},
        objectives=Objectives(mlm=0.0, plm=1.0),
        masking=Masking("ngram", rate=1 / 6, max_ngram=5),
        optimizer=Optimizer(lr=4e-4, warmup_steps=40_000),
        data=Data(tokenizer="unigram", vocab_size=32_000, step_tokens=8192 * 512),
        steps=500_000,
    )


def xlnet_large() -> PretrainConfig:
    """XLNet large: 24 x 1024, otherwise as xlnet-base."""
    return replace(xlnet_base(), name="xlnet-large", model={**_xlnet_shape(24, 1024, 16, 4096), "dropout": 0.1})


def bert_tiny() -> PretrainConfig:
    """BERT, 4 x 128: static token masks, next-sentence prediction, WordPiece."""
    return _tiny(bert_base(), "bert-tiny", _bert_shape(), lr=1e-3)


def roberta_tiny() -> PretrainConfig:
    """RoBERTa, 4 x 128: dynamic token masks over full sentences, byte BPE."""
    return _tiny(roberta_base(), "roberta-tiny", {**_bert_shape(), "type_vocab_size": 1}, lr=1e-3)


def albert_tiny() -> PretrainConfig:
    """ALBERT, 4 x 128: word embeddings of 64, all layers shared, n-gram masks, sentence order."""
    fields = {"embedding_size": 64, "classifier_dropout_prob": 0.0, "share": "all"}
    return _tiny(albert_base(), "albert-tiny", {**_bert_shape(), **fields}, lr=1e-3)


def albert_tiny_ffn() -> PretrainConfig:
    """albert-tiny with only the feed-forward layers shared."""
    return with_model(albert_tiny(), "albert-tiny-ffn", share="ffn")


def albert_tiny_attention() -> PretrainConfig:
    """albert-tiny with only the attention shared."""
    return with_model(albert_tiny(), "albert-tiny-attention", share="attention")


def spanbert_tiny() -> PretrainConfig:
    """SpanBERT, 4 x 128: geometric spans, also predicted from their boundary tokens."""
    return _tiny(spanbert_base(), "spanbert-tiny", _bert_shape(), lr=1e-3)


def spanbert_tiny_one_mask() -> PretrainConfig:
    """spanbert-tiny with a single [MASK] for a whole span."""
    base = spanbert_tiny()
    return replace(base, name="spanbert-tiny-one-mask", masking=replace(base.masking, one_mask_per_span=True))


def xlnet_tiny() -> PretrainConfig:
    """XLNet, 4 x 128: predicts the last sixth of a random order; two-stream attention, relative positions."""
    return _tiny(xlnet_base(), "xlnet-tiny", {**_xlnet_shape(4, 128, 4, 512), "dropout": 0.0}, lr=1e-3)


def gpt2_tiny() -> PretrainConfig:
    """GPT-2, 4 x 128: next-token prediction, with the text and tokenizer of tiny-ar."""
    shape = {"n_layer": 4, "n_embd": 128, "n_head": 4, "n_positions": 128}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = _tiny(roberta_base(), "gpt2-tiny", {**shape, **dropout}, lr=3e-3)  # better than 1e-3 (docs/generation.md)
    objective = Objectives(mlm=0.0, arlm=1.0)
    return replace(config, family="gpt2", objectives=objective, unigram_bias=False, data=tiny().data)  # GPT-2: no bias


FAMILY = {
    "bert-base": bert_base,
    "roberta-base": roberta_base,
    "albert-base": albert_base,
    "spanbert-base": spanbert_base,
    "xlnet-base": xlnet_base,
    "bert-large": bert_large,
    "roberta-large": roberta_large,
    "albert-large": albert_large,
    "albert-xlarge": albert_xlarge,
    "albert-xxlarge": albert_xxlarge,
    "spanbert-large": spanbert_large,
    "xlnet-large": xlnet_large,
    "bert-tiny": bert_tiny,
    "roberta-tiny": roberta_tiny,
    "albert-tiny": albert_tiny,
    "albert-tiny-ffn": albert_tiny_ffn,
    "albert-tiny-attention": albert_tiny_attention,
    "spanbert-tiny": spanbert_tiny,
    "spanbert-tiny-one-mask": spanbert_tiny_one_mask,
    "xlnet-tiny": xlnet_tiny,
    "gpt2-tiny": gpt2_tiny,
}


def _albert(name: str, layers: int, hidden: int, heads: int) -> PretrainConfig:
    shape = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    return with_model(albert_base(), name, **shape, intermediate_size=4 * hidden)


def _tiny(base: PretrainConfig, name: str, model: dict[str, object], *, lr: float) -> PretrainConfig:
    """Reduce a published recipe to the size, data and budget of ``tiny``. Token masks get the rate of ``tiny``."""
    deberta = tiny()
    masking = base.masking
    if masking.strategy == "token":
        masking = replace(masking, rate=deberta.masking.rate)
    return replace(
        deberta,
        name=name,
        family=base.family,
        model=model,
        objectives=base.objectives,
        masking=masking,
        optimizer=replace(deberta.optimizer, lr=lr),
        data=replace(deberta.data, tokenizer=base.data.tokenizer, mode=base.data.mode),
    )


def _bert_shape() -> dict[str, object]:
    shape = {"num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 512}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return {**shape, **dropout, "max_position_embeddings": 128}


def _xlnet_shape(layers: int, hidden: int, heads: int, inner: int) -> dict[str, object]:
    """No memory, because chunks are independent. [CLS] is the first token here, so classifiers read the first row."""
    shape = {"n_layer": layers, "d_model": hidden, "n_head": heads, "d_inner": inner}
    return {**shape, "mem_len": None, "summary_type": "first"}
