"""Generate texts from prompts with transformers' ``generate()``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, TextStreamer

from debertakit.checkpoints import load_whole
from debertakit.generation.causal import DebertaForCausalLM
from debertakit.generation.seq2seq import DebertaForSeq2SeqLM, is_seq2seq
from debertakit.precision import best_device

Writer = DebertaForCausalLM | DebertaForSeq2SeqLM


def load_writer(name: str | Path) -> Writer:
    """Load DeBERTa-D or an autoregressive model, depending on the config, from a folder or hub name."""
    if is_seq2seq(name):
        model = DebertaForSeq2SeqLM.from_pretrained(name, dtype=torch.float32).eval()
    else:
        model = load_whole(DebertaForCausalLM, name)
    return model.to(best_device())


def write(
    model: Writer,
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[str],
    *,
    longest: int | None = None,
    prefix_mode: bool = False,
    stream: bool = False,
    **settings: Any,
) -> list[str]:
    """Continue each prompt (autoregressive model) or transform each source (DeBERTa-D).

    Prompts and sources are truncated to ``longest`` tokens. ``settings`` are passed to ``generate()`` (max_new_tokens,
    do_sample, num_beams ...). ``prefix_mode``: an autoregressive model reads the prompt with bidirectional attention.
    ``stream`` prints the text of a single prompt while it is generated.
    """
    inputs = _inputs(model, tokenizer, prompts, longest)
    if prefix_mode:
        if model.config.is_encoder_decoder:
            raise ValueError("prefix mode is for autoregressive models; DeBERTa-D's encoder is always bidirectional")
        inputs["prefix_lengths"] = inputs["attention_mask"].sum(-1)
    streamer = None
    if stream:
        if len(prompts) != 1 or settings.get("num_beams", 1) > 1:
            raise ValueError("streaming needs a single prompt and no beam search")
        shown = not model.config.is_encoder_decoder
        streamer = TextStreamer(tokenizer, skip_prompt=not shown, skip_special_tokens=True)
    if not model.config.is_encoder_decoder and model.config.position_biased_input:
        room = model.config.max_position_embeddings - inputs["input_ids"].shape[1]
        if room < 1:
            raise ValueError(f"the prompt fills all {model.config.max_position_embeddings} positions of the model")
        settings["max_new_tokens"] = min(settings.get("max_new_tokens", room), room)
    output = model.generate(
        **inputs,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.sep_token_id,
        suppress_tokens=_never_written(model, tokenizer),
        streamer=streamer,
        **settings,
    )
    begun = 0 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    return [text.strip() for text in tokenizer.batch_decode(output[:, begun:], skip_special_tokens=True)]


def _inputs(
    model: Writer, tokenizer: PreTrainedTokenizerFast, prompts: list[str], longest: int | None
) -> dict[str, torch.Tensor]:
    """Tokenise and pad. A source is [CLS] ... [SEP], padded on the right as in training, because encoders may count
    positions from the first column. A prompt is [CLS] ... without [SEP], padded on the left."""
    if model.config.is_encoder_decoder:
        rows = tokenizer(prompts, truncation=longest is not None, max_length=longest)["input_ids"]
        side = "right"
    else:
        bare = tokenizer(prompts, add_special_tokens=False)["input_ids"]
        rows = [[tokenizer.cls_token_id, *ids][:longest] for ids in bare]
        side = "left"
    padded = tokenizer.pad({"input_ids": rows}, padding_side=side, return_tensors="pt")
    return {name: padded[name].to(model.device) for name in ("input_ids", "attention_mask")}


def _never_written(model: Writer, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Ids of special tokens, except the end token, and ids in the word table that the tokenizer does not have."""
    specials = set(tokenizer.all_special_ids) - {tokenizer.sep_token_id}
    return sorted(specials | set(range(len(tokenizer), model.config.vocab_size)))


def write_all(
    model: Writer,
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[str],
    batch: int,
    tell: Callable[[int], None] = lambda done: None,
    **settings: Any,
) -> list[str]:
    """Call ``write`` on batches of prompts with similar lengths. ``tell`` is called with the number done."""
    by_length = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    texts = [""] * len(prompts)
    for start in range(0, len(prompts), batch):
        chosen = by_length[start : start + batch]
        for i, text in zip(chosen, write(model, tokenizer, [prompts[i] for i in chosen], **settings), strict=True):
            texts[i] = text
        tell(start + len(chosen))
    return texts
