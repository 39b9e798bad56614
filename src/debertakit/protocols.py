"""Duck types that several packages share."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import tokenizers


class Tokenizer(Protocol):
    """What we use of a fast tokenizer of transformers. A special id is None if the tokenizer lacks that token."""

    model_max_length: int
    model_input_names: list[str]
    padding_side: str
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

    def __call__(self, text: str | Sequence[Any], *texts: str | Sequence[str] | None, **options: Any) -> Any: ...

    def __len__(self) -> int: ...

    def pad(self, rows: Mapping[str, Any] | Sequence[Mapping[str, Any]], **options: Any) -> Any: ...

    def decode(self, ids: Any, **options: Any) -> str: ...

    def batch_decode(self, rows: Any, **options: Any) -> list[str]: ...

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]: ...

    def convert_tokens_to_ids(self, tokens: Any) -> Any: ...

    def save_pretrained(self, folder: str | Path) -> Any: ...
