"""Autoregressive DeBERTa: the encoder with a triangular mask (paper A.4, following UniLM).

    p(token_{t+1} | tokens up to t) = softmax(E head(h_t) + b),      h_t sees positions 0 to t

In *prefix mode* the first n tokens attend to one another in both directions, as in masked language modelling. Later
tokens see the prefix and all tokens up to themselves. The weights and their names are the masked model's: a checkpoint
trained on both objectives (``deberta pretrain deberta-mt``) can fill masks and generate text, and this class does both
(``predict`` is the masked model's).

The config chooses where absolute positions are added, as in the paper's table 10:

    (default)                   nowhere: relative distances only
    position_biased_input       at the input, as in RoBERTa ("DeBERTa-AP")
    causal_emd                  at the end: the Enhanced Mask Decoder decodes row t, q_0 = H_t + P_t, over the
                                keys and values up to t
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache, GenerationConfig, GenerationMixin
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from debertakit.config import DebertaConfig
from debertakit.decoding import read_rows
from debertakit.generation.cache import Chunk, pack_chunk
from debertakit.heads import DebertaForMaskedLM
from debertakit.padding import IGNORED, Recorder


class DebertaForCausalLM(DebertaForMaskedLM, GenerationMixin):
    """Autoregressive language model with the weights of ``DebertaForMaskedLM``."""

    decodes_masks = False

    def __init__(self, config: DebertaConfig):
        if config.conv_kernel_size > 0:
            raise ValueError(
                f"conv_kernel_size={config.conv_kernel_size}: the convolution reads the next token, so this model "
                "cannot generate text; use DebertaForSeq2SeqLM.from_encoder instead"
            )
        self.decodes_masks = config.causal_emd
        super().__init__(config)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | Path | None, *args: object, **kwargs: Any
    ) -> "DebertaForCausalLM":
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        with suppress(OSError, TypeError):  # no generation config was saved, or a state dict is being loaded
            model.generation_config = GenerationConfig.from_pretrained(pretrained_model_name_or_path)
        return loaded

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,  # [batch, new]
        attention_mask: Tensor | None = None,  # [batch, cached + new]; 0 at padding, on either side
        inputs_embeds: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        prefix_lengths: Tensor | None = None,  # [batch]: real tokens with bidirectional attention; None: 0
        labels: Tensor | None = None,  # [batch, new], not shifted; -100 is ignored
        logits_to_keep: int = 0,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: object,
    ) -> CausalLMOutputWithPast:
        """Return next-token logits [batch, new, vocabulary], or only the last ``logits_to_keep`` of them if not 0.

        Training with labels returns logits of the labelled tokens only: [labelled, vocabulary]. Relative distances
        count real tokens only, so padding has no effect.
        """
        config = self.config
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=config)
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        chunk = pack_chunk(config, input_ids, attention_mask, past, inputs_embeds, prefix_lengths)
        cells, targets = chunk.cells(logits_to_keep), None
        if labels is not None:
            following = F.pad(labels, (0, 1), value=IGNORED)[:, 1:]
            targets = following[:, -logits_to_keep:].flatten()
            if attention_mask is not None:
                real = attention_mask[:, past:].bool()[:, -logits_to_keep:].flatten()
                targets = targets.masked_fill(~real, IGNORED)
            if prefix_lengths is not None:  # a token of the prefix is visible to the row that would predict it
                seen = chunk.packed.positions[cells] + 1 < prefix_lengths[:, None]
                targets = targets.masked_fill(seen.flatten(), IGNORED)
            if self.training:
                wanted = (targets != IGNORED).nonzero().squeeze(-1)
                cells, targets = cells.flatten()[wanted], targets[wanted]
        recorder = chunk.recorder(
            bool(config.output_hidden_states if output_hidden_states is None else output_hidden_states),
            bool(config.output_attentions if output_attentions is None else output_attentions),
        )
        hidden = self._read(chunk, past_key_values, cells.flatten(), recorder)
        logits = self.lm_predictions.lm_head(hidden, self.deberta.embeddings.word_embeddings.weight)
        loss = None
        if targets is not None:
            loss = self.loss_function(logits, None, config.vocab_size, shift_labels=targets, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits.view(*cells.shape, -1),
            past_key_values=past_key_values,
            **recorder.outputs(),
        )

    def _read(self, chunk: Chunk, cache: Cache | None, rows: Tensor, recorder: Recorder) -> Tensor:
        """Compute hidden states of these packed rows (ascending), ready for the head."""
        config = self.config
        if config.causal_emd and recorder.attentions is not None:
            raise ValueError("attentions are not available with causal_emd: the last layer runs emd_steps times")
        decoded, plain = read_rows(
            self.deberta,
            chunk.packed,
            decoded=rows if config.causal_emd else None,
            plain=None if config.causal_emd else rows,
            recorder=recorder,
            cache_updates=chunk.cache_updates(cache, config.num_hidden_layers),
        )
        hidden = decoded if config.causal_emd else plain
        assert hidden is not None
        return hidden
