"""Duck types that several packages share: tokenizers, and DeBERTa's modules in our classes or in stock transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, get_args, overload

if TYPE_CHECKING:
    import tokenizers
    from torch import Tensor, nn
    from transformers import BatchEncoding

Precision = Literal["auto", "fp32", "bf16", "fp16"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
"""Of training (precision.py). Here, because the command line checks it without torch."""
Combine = Literal["probabilities", "logits", "votes"]
"""How an ensemble combines its members (ensembles.py)."""


class Tokenizer(Protocol):
    """What we use of a fast tokenizer of transformers. A special id is None if the tokenizer lacks that token."""

    model_max_length: int
    model_input_names: list[str]
    padding_side: str
    truncation_side: str
    init_kwargs: dict[str, object]
    mask_token: str
    all_special_ids: list[int]
    pad_token_id: int
    cls_token_id: int
    sep_token_id: int
    mask_token_id: int
    unk_token_id: int
    bos_token_id: int
    eos_token_id: int

    @property
    def backend_tokenizer(self) -> tokenizers.Tokenizer: ...

    def __call__(
        self,
        text: str | Sequence[str] | Sequence[Sequence[str]],
        *texts: str | Sequence[str] | None,
        **options: object,
    ) -> BatchEncoding: ...

    def __len__(self) -> int: ...

    def pad(
        self, rows: Mapping[str, Sequence[object]] | Sequence[Mapping[str, Sequence[object]]], **options: object
    ) -> BatchEncoding: ...

    def decode(self, ids: int | Sequence[int] | Tensor, **options: object) -> str: ...

    def batch_decode(self, rows: Sequence[Sequence[int]] | Tensor, **options: object) -> list[str]: ...

    @overload
    def convert_ids_to_tokens(self, ids: int) -> str: ...

    @overload
    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]: ...

    @overload
    def convert_tokens_to_ids(self, tokens: str) -> int: ...

    @overload
    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]: ...

    def save_pretrained(self, folder: str | Path) -> object: ...


# DeBERTa's modules, ours or those of stock transformers. Each protocol names the parts that our functions read, so that
# ``accelerate`` runs a stock model with the same code. attention/projections.py describes the two attention layouts.


class _AttentionSettings(Protocol):
    num_attention_heads: int
    training: bool

    @property
    def dropout(self) -> nn.Dropout:
        """Dropout of the probabilities."""

    @property
    def pos_dropout(self) -> nn.Module:
        """Dropout of the relative table. Stock modules have it only with relative attention."""


class SplitAttention(_AttentionSettings, Protocol):
    """v2 and v3. Without ``share_att_key`` also pos_key_proj and pos_query_proj, each only if a term needs it."""

    share_att_key: bool
    query_proj: nn.Linear
    key_proj: nn.Linear
    value_proj: nn.Linear


class FusedAttention(_AttentionSettings, Protocol):
    """v1. Also pos_proj and pos_q_proj, each only if a term needs it."""

    in_proj: nn.Linear
    q_bias: nn.Parameter
    v_bias: nn.Parameter


SelfAttention = SplitAttention | FusedAttention


class Residual(Protocol):
    """LayerNorm(residual + dropout(dense(x)))."""

    @property
    def dense(self) -> nn.Module: ...

    @property
    def LayerNorm(self) -> nn.Module: ...

    @property
    def dropout(self) -> nn.Module: ...


class Attention(Protocol):
    @property
    def self(self) -> SelfAttention: ...

    @property
    def output(self) -> Residual: ...


class Intermediate(Protocol):
    @property
    def dense(self) -> nn.Module: ...

    @property
    def intermediate_act_fn(self) -> Callable[[Tensor], Tensor]: ...


class Layer(Protocol):
    training: bool
    gradient_checkpointing: bool

    @property
    def attention(self) -> Attention: ...

    @property
    def intermediate(self) -> Intermediate: ...

    @property
    def output(self) -> Residual: ...

    def _gradient_checkpointing_func(self, function: Callable[..., Tensor], *args: Tensor | None) -> Tensor: ...


class Convolution(Protocol):
    conv: nn.Conv1d
    LayerNorm: nn.LayerNorm
    dropout: nn.Dropout


class HasRelativeTable(Protocol):
    """An encoder, or the decoder of DeBERTa-D."""

    training: bool
    rel_embeddings: nn.Embedding
    LayerNorm: nn.LayerNorm
    """Norm of the table. Absent if norm_rel_ebd is "none"."""


class Encoder(HasRelativeTable, Protocol):
    @property
    def layer(self) -> Sequence[Layer]: ...

    @property
    def conv(self) -> Convolution | None: ...
