"""Load the tokenizers of released models, token for token. tokenizer_training.py trains new ones.

Why not simply `AutoTokenizer`? On the files Microsoft published, transformers 5.22.2 is wrong in two ways:

* v2/v3 (`spm.model`): `DebertaV2Tokenizer` replaces the model's own normaliser (nmt_nfkc) by NFC and disables byte
  fallback. Of 157,914 lines of English and Chinese, 12,805 get different tokens than from sentencepiece. Ours: 1
  ("KKKKKKKKKK": two segmentations have the same pieces, and the 32-bit sums of sentencepiece choose the other one).
* v1 (`vocab.json`): `DebertaTokenizer` writes a pair as `[CLS] A [SEP] [SEP] B [SEP]`; the models were trained on
  `[CLS] A [SEP] B [SEP]`.

Both are fixed with components of the `tokenizers` library, so the result is a plain `PreTrainedTokenizerFast`. Its
saved files load in stock `AutoTokenizer` with the same ids. `benchmarks/tokenizer_parity.py` measures these counts.

Released DeBERTa models and newly trained tokenizers use the ids [PAD] 0, [CLS] 1, [SEP] 2, [UNK] 3, and [MASK] last.
"""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import tokenizers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from debertakit.files import remove, replacing, temporary_path
from debertakit.text.unigram import from_sentencepiece

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from debertakit.protocols import Tokenizer as SavedTokenizer

SPECIALS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
MASK = "[MASK]"
TOKENIZER_FILES = ("tokenizer.json", "spm.model", "vocab.json", "vocab.txt")  # in search order
SIDE_FILES = ("merges.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")


def load_tokenizer(path_or_name: str | Path) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a folder, one of `TOKENIZER_FILES`, or a Hugging Face hub name (needs the network).

    `tokenizer.json` has priority over its source files, because the model in that folder was trained with it.
    """
    path = Path(path_or_name)
    if not path.exists():
        path = _download(str(path_or_name))
    file = path if path.is_file() else next((path / name for name in TOKENIZER_FILES if (path / name).is_file()), None)
    if file is None:
        raise ValueError(f"no tokenizer in {path}; expected one of {', '.join(TOKENIZER_FILES)}")
    try:
        if file.name == "tokenizer.json":
            return _load_saved(file)
        if file.suffix == ".model":
            return wrap(from_sentencepiece(file))
        if file.name == "vocab.json":
            return _from_gpt2(file)
        if file.name == "vocab.txt":
            return _from_wordpiece(file)
    except Exception as error:  # the Rust side raises bare Exception; add the file name
        if isinstance(error, ValueError) and not isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
            raise
        raise ValueError(f"{file} is not a readable tokenizer file: {error}") from error
    raise ValueError(f"{file} is not a tokenizer file: expected a .model or one of {', '.join(TOKENIZER_FILES)}")


def save_tokenizer(tokenizer: SavedTokenizer, folder: Path) -> None:
    """Write the tokenizer's files to ``folder``, each file complete or not at all. Other files in it stay."""
    if not folder.is_dir() or not any(folder.iterdir()):
        with replacing(folder) as temporary:
            write_tokenizer(tokenizer, temporary)
        return
    written = temporary_path(folder)
    remove(written)
    try:
        write_tokenizer(tokenizer, written)
        for file in sorted(written.iterdir()):
            with replacing(folder / file.name) as temporary:
                file.rename(temporary)
    finally:
        remove(written)


def write_tokenizer(tokenizer: SavedTokenizer, folder: Path) -> None:
    """``save_pretrained`` with the version of the tokenizers library; a full disk is an OSError."""
    tokenizer.init_kwargs["tokenizers_version"] = tokenizers.__version__  # in tokenizer_config.json
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:
        if type(error) is not Exception:  # the Rust side raises bare Exception
            raise
        raise OSError(f"cannot write the tokenizer to {folder}: {error}") from error


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or Path(name).suffix in {".model", ".json", ".txt"}:
        raise ValueError(f"no such file or folder: {name}")
    try:
        return Path(snapshot_download(name, allow_patterns=[*TOKENIZER_FILES, *SIDE_FILES]))
    except Exception as error:  # offline, unknown repository, no permission: a dozen exception classes
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"{name} is not a local folder, and the hub did not provide it: {reason}") from error


def wrap(backend: Tokenizer) -> PreTrainedTokenizerFast:
    """Wrap `backend` in a transformers tokenizer with DeBERTa's special tokens (added if missing) and template."""
    from transformers import PreTrainedTokenizerFast

    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    for token in [*SPECIALS, MASK]:
        if token not in added:
            backend.add_special_tokens([AddedToken(token, special=True, normalized=False)])
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    names |= {"bos_token": "[CLS]", "eos_token": "[SEP]", "mask_token": MASK}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **names,
    )


def _load_saved(file: Path) -> PreTrainedTokenizerFast:
    # Not AutoTokenizer: if tokenizer_config.json names DebertaV2Tokenizer, it would discard the saved normaliser.
    from transformers import PreTrainedTokenizerFast

    if (file.parent / "tokenizer_config.json").is_file():
        return PreTrainedTokenizerFast.from_pretrained(file.parent)
    return wrap(Tokenizer.from_file(str(file)))


def _from_gpt2(file: Path) -> PreTrainedTokenizerFast:
    merges = file.with_name("merges.txt")
    if not merges.is_file():
        raise ValueError(f"{file} needs merges.txt in the same folder")
    vocab, rules = models.BPE.read_file(str(file), str(merges))
    if "[CLS]" not in vocab:
        # Microsoft's v1 ids follow fairseq's frequency list. GPT-2's files do not contain it, so ids cannot be derived.
        warnings.warn(
            f"{file} is GPT-2's vocabulary, not DeBERTa v1's: special tokens are appended to it, and the ids do not "
            "fit the released v1 checkpoints (use the vocab.json of microsoft/deberta-base for those)",
            stacklevel=3,
        )
    return wrap(byte_level(models.BPE(vocab, rules)))


def byte_level(model: models.BPE) -> Tokenizer:
    """Build a byte-level tokenizer as in GPT-2 and stock `DebertaTokenizer`. [MASK] includes the space before it."""
    backend = Tokenizer(model)
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    specials = [AddedToken(token, special=True, normalized=False, lstrip=token == MASK) for token in [*SPECIALS, MASK]]
    backend.add_special_tokens(specials)
    return backend


def _from_wordpiece(file: Path) -> PreTrainedTokenizerFast:
    from transformers import BertTokenizer

    if (file.parent / "tokenizer_config.json").is_file():
        return BertTokenizer.from_pretrained(file.parent)
    pieces = file.read_text(encoding="utf-8").splitlines()
    # check only pieces made of letters: bert-base-chinese is uncased but contains <S> and <T>
    cased = any(piece != piece.lower() for piece in pieces if piece.removeprefix("##").isalpha())
    return BertTokenizer(vocab=str(file), do_lower_case=not cased)
