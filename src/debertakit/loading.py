"""What a model folder is. Training, evaluation, prediction, serving, export and explanation all open it here.

    model = describe("runs/sst2")       config, head, kind of task, labels, maximum length, threshold, pooling
    model.tokenizer()                   our tokenizer for DeBERTa, else that of transformers
    model.network()                     the trained network: every weight must be there
    load_for_training(...)              the encoder with a head for a kind of task, new unless the folder has one

A folder holds config.json, weights and tokenizer files in the format of transformers. ``finetune`` adds task.json
(``TaskSettings``): how the texts were read and when a question counts as unanswerable. A folder that PEFT wrote holds
an adapter (adapter_config.json) and names its base model; the adapter is merged when the network is loaded. The name of
a hub model works like a folder, except for adapters.

DeBERTa models use our classes, other encoders those of transformers. Weights are always loaded as fp32.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from debertakit.checkpoints import hub_file, load_whole
from debertakit.config import MODEL_TYPES, DebertaConfig
from debertakit.data.examples import Kind
from debertakit.ensembles import Ensemble, read_ensemble
from debertakit.files import remove, write_json
from debertakit.generation.seq2seq import DebertaForSeq2SeqLM, DebertaSeq2SeqConfig, is_seq2seq
from debertakit.model_names import check_model, resolve_bundled
from debertakit.protocols import Tokenizer
from debertakit.text.tokenizers import TOKENIZER_FILES, load_tokenizer

HEADS: dict[Kind, str] = {
    "single-label": "SequenceClassification",
    "multi-label": "SequenceClassification",
    "regression": "SequenceClassification",
    "tagging": "TokenClassification",
    "qa": "QuestionAnswering",
    "choice": "MultipleChoice",
}
PROBLEM_TYPES: dict[Kind, str] = {
    "single-label": "single_label_classification",
    "multi-label": "multi_label_classification",
    "regression": "regression",
}
ADAPTED_HEADS = {  # PEFT's task types
    "SEQ_CLS": "SequenceClassification",
    "TOKEN_CLS": "TokenClassification",
    "QUESTION_ANS": "QuestionAnswering",
}
LABELLED: tuple[Kind, ...] = ("single-label", "multi-label", "tagging")
DROPOUTS = ("cls_dropout", "classifier_dropout", "classifier_dropout_prob", "seq_classif_dropout")
"""Config fields for the dropout before the classifier: ours, BERT's, ALBERT's, DistilBERT's. XLNet has none."""
UNUSUAL = 0.987
"""A dropout that no model has."""
LAYER = re.compile(r"(?:^|\.)layers?\.(\d+)\.")
TASK_FILE = "task.json"
POOLING_FILE = "1_Pooling/config.json"
POOLING_FILES = ("modules.json", POOLING_FILE)  # of sentence-transformers
ADAPTER_FILE, BASE_MODEL = "adapter_config.json", "base_model_name_or_path"  # of PEFT


@dataclass(frozen=True)
class TaskSettings:
    """How a fine-tuned model reads texts and decides. ``finetune`` writes it, ``describe`` reads it."""

    max_length: int | None = None
    """Tokens; None: the longest input that the model takes."""
    no_answer_threshold: float | None = 0.0
    """How far "no answer" must beat the best answer; None: the model always answers (decisions.py)."""
    columns: dict[str, Any] = field(default_factory=dict)
    """Columns of the training file: text, pair, label, separator and options, if it was a table."""

    def save(self, folder: Path) -> None:
        write_json(folder / TASK_FILE, asdict(self))

    @classmethod
    def read(cls, name: str | Path) -> "TaskSettings":
        """Read task.json of a folder or hub model, or the files of a run by version 1: run.json and metrics.json."""
        stored = _json(name, TASK_FILE)
        unknown = sorted(stored.keys() - {each.name for each in fields(cls)})
        if unknown:
            raise ValueError(f"{name}: {TASK_FILE} has the unknown field {unknown[0]!r}; a newer version wrote it")
        if not stored and Path(name).is_dir():
            metrics = _json(name, "metrics.json")
            stored = {"max_length": _json(name, "run.json").get("max_length")}
            stored["no_answer_threshold"] = metrics.get("no_answer_threshold", 0.0)
        for key, types in (("max_length", (int,)), ("no_answer_threshold", (int, float))):
            value = stored.get(key)
            if value is not None and (isinstance(value, bool) or not isinstance(value, types)):
                raise ValueError(f"{name}: {key}={value!r} in {TASK_FILE} is not a number")
        return cls(**stored)


@dataclass(frozen=True)
class SavedModel:
    name: str
    """Folder or hub name."""
    config: PreTrainedConfig
    """For a DeBERTa-D, the config of its encoder."""
    head: str
    """The class without its prefix: "SequenceClassification"; "" for a bare encoder."""
    settings: TaskSettings
    adapter: Path | None = None
    """Folder of an adapter; ``name`` is then its base model."""

    @property
    def ours(self) -> bool:
        return self.config.model_type in MODEL_TYPES

    @property
    def kind(self) -> Kind:
        """Kind of task, by the head. Raises for a model without a head for a task."""
        for kind in ("tagging", "qa", "choice"):
            if self.head == HEADS[kind]:
                return kind
        if self.head != "SequenceClassification":
            raise ValueError(f"{self} has no head for a task (it has {self.head_name}); fine-tune it first")
        return sequence_kind(self.config)

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels in logit order; () for kinds without labels."""
        return labels_of(self.config) if self.kind in LABELLED else ()

    @property
    def head_name(self) -> str:
        return f"a {self.head} head" if self.head else "no head"

    @cached_property
    def pooling(self) -> str:
        """Pooling of a sentence-transformers model: mean (the default) or cls."""
        return _stored_pooling(self._holder(POOLING_FILE))

    def __str__(self) -> str:
        return str(self.adapter or self.name)

    def _holder(self, *files: str) -> str:
        """The adapter folder if it holds one of ``files``, else the (base) model."""
        own = self.adapter is not None and any((self.adapter / file).is_file() for file in files)
        return str(self) if own else self.name

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Load our tokenizer for DeBERTa (text/tokenizers.py explains why), else that of transformers.

        An adapter folder may hold a tokenizer of its own; without one, the base model's is used.
        """
        path = self._holder(*TOKENIZER_FILES)
        if self.ours:
            return _tried(path, load_tokenizer)
        from transformers import AutoTokenizer

        try:
            return _tried(path, partial(AutoTokenizer.from_pretrained, trust_remote_code=False))
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} has no tokenizer: {_first_line(error)}") from None

    def network(self, head: str | None = None, **options: object) -> PreTrainedModel:
        """Load the network for inference, with its own head or another one ("" for the bare encoder).

        Raises if a weight is missing, except for the bare encoder of a model with a head. ``options`` are those of
        ``from_pretrained``.
        """
        wanted = self.head if head is None else head
        if is_seq2seq(self.name):
            raise ValueError(f"{self} is a DeBERTa-D: it generates text (deberta generate) and has no {wanted} head")
        if (several := read_ensemble(Path(self.name))) is not None:
            return cast(PreTrainedModel, Ensemble([describe(path).network(head) for path in several[0]], several[1]))
        cls = _class_of(wanted, self.ours)
        options = {"dtype": torch.float32, **_safe(self.ours), **options}
        with _readable(self, "weights and config do not fit together"):
            if self.adapter is not None:
                return _merged(cls, self, self.adapter)
            if not wanted:
                return cls.from_pretrained(self.name, **options).eval()
            return load_whole(cls, self.name, **options)


def describe(name: str | Path) -> SavedModel:
    """Describe a folder, a hub model or a bundled model (en-small, zh-small) without loading its weights."""
    name = resolve_bundled(name)
    folder = Path(name)
    if (folder / ADAPTER_FILE).is_file():
        return _describe_adapter(folder)
    config = load_config(name)
    return SavedModel(str(name), config, _head(config), TaskSettings.read(name))


def load_config(path: str | Path) -> PreTrainedConfig:
    """Load a config. For a DeBERTa-D, return the config of its encoder."""
    from transformers import AutoConfig

    path = check_model(path)
    folder = Path(path)
    if (folder / ADAPTER_FILE).is_file() and not (folder / "config.json").is_file():
        raise ValueError(f"{path} is an adapter; give its base model, {_json(path, ADAPTER_FILE).get(BASE_MODEL)}")
    with _readable(path, "config.json cannot be used"):
        try:
            config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        except (OSError, ValueError) as error:
            here = "config.json cannot be used" if folder.exists() else "no such folder, and no hub model was found"
            raise ValueError(f"{path}: {here}: {_first_line(error)}") from None
        if isinstance(config, DebertaSeq2SeqConfig):
            return config.encoder
        config = DebertaConfig.from_pretrained(path) if config.model_type in MODEL_TYPES else config
        config.to_dict()  # raises on fields of a wrong type
        return config


def sequence_kind(config: PreTrainedConfig) -> Kind:
    """Kind of task of a sequence classification head."""
    kinds = {problem: kind for kind, problem in PROBLEM_TYPES.items()}
    if config.problem_type in kinds:
        return kinds[config.problem_type]
    return "regression" if config.num_labels == 1 else "single-label"


def labels_of(config: PreTrainedConfig) -> tuple[str, ...]:
    """Labels in logit order."""
    missing = [i for i in range(config.num_labels) if not isinstance(config.id2label.get(i), str)]
    if missing:
        raise ValueError(f"config.json: id2label has no text for label {missing[0]}")
    return tuple(config.id2label[i] for i in range(config.num_labels))


def load_for_training(
    path: str | Path, kind: Kind, labels: tuple[str, ...] = (), cls_dropout: float | None = None
) -> PreTrainedModel:
    """Load a folder or hub model with a head for ``kind``, new unless the checkpoint has one that fits."""
    path = resolve_bundled(path)
    config = load_config(path)
    ours = config.model_type in MODEL_TYPES
    cls = _class_of(HEADS[kind], ours)
    changes = _head_fields(kind, labels) | _dropout_field(config, cls_dropout)
    if ours and is_seq2seq(path):
        return _encoder_of(path, cls, config, changes)
    loading = {"dtype": torch.float32, "ignore_mismatched_sizes": True, "output_loading_info": True, **_safe(ours)}
    with _readable(path, "weights and config do not fit together"):
        model, info = cls.from_pretrained(path, **loading, **changes)
    missing = sorted(name for name in info["missing_keys"] if LAYER.search(name))
    if missing:
        raise ValueError(f"{path} lacks {len(missing)} weights of the encoder, for example {missing[0]}")
    return model


def has_head_dropout(path: str | Path, kind: Kind) -> bool:
    """Whether ``cls_dropout`` changes the head of a model for ``kind``. Some heads of transformers have no dropout."""
    config = load_config(path)
    ours = config.model_type in MODEL_TYPES
    cls = _class_of(HEADS[kind], ours)
    marked = type(config).from_dict({**config.to_dict(), **_dropout_field(config, UNUSUAL)})
    with torch.device("meta"):
        model = cls(marked) if ours else cls.from_config(marked)
    return any(isinstance(module, nn.Dropout) and module.p == UNUSUAL for module in model.modules())


def _dropout_field(config: PreTrainedConfig, cls_dropout: float | None) -> dict[str, object]:
    name = next((name for name in DROPOUTS if hasattr(config, name)), None)
    return {} if name is None or cls_dropout is None else {name: cls_dropout}


def longest_input(model: PreTrainedModel, tokenizer: Tokenizer) -> tuple[int, bool]:
    """Maximum number of input tokens, and whether longer inputs are impossible (absolute positions)."""
    config = model.config
    longest = tokenizer.model_max_length
    positions = getattr(config, "max_position_embeddings", None) or -1
    if positions > 0:
        longest = min(longest, positions)
    elif longest > 10**6:  # XLNet has no limit, and its tokenizer reports a huge number
        longest = 512
    if config.model_type in MODEL_TYPES:
        return longest, config.position_biased_input
    for name, table in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(table, nn.Embedding):
            # RoBERTa and similar models start positions after the padding index.
            taken = 0 if table.padding_idx is None else table.padding_idx + 1
            return min(longest, table.num_embeddings - taken), True
    return longest, False


def copy_settings(saved: SavedModel, target: Path) -> None:
    """Copy the settings of a model and the files of its pooling, and remove those of an earlier export."""
    if Path(str(saved)).resolve() == target.resolve():
        return
    remove(target / TASK_FILE)
    if saved.settings != TaskSettings():
        saved.settings.save(target)
    for file in POOLING_FILES:
        remove(target / Path(file).parts[0])
        found = _find(saved._holder(*POOLING_FILES), file)
        if found is not None:
            (target / file).parent.mkdir(exist_ok=True)
            shutil.copy(found, target / file)


def _class_of(head: str, ours: bool) -> type[PreTrainedModel]:
    """Model class for a head: ours, or the auto class of transformers. "" is the bare encoder."""
    import transformers

    from debertakit import heads
    from debertakit.model import DebertaModel

    if not ours:
        return getattr(transformers, f"AutoModelFor{head}" if head else "AutoModel")
    if not head:
        return DebertaModel
    cls = getattr(heads, f"DebertaFor{head}", None)
    if cls is None:
        raise ValueError(f"there is no DeBERTa class with a {head} head")
    return cls


def _head(config: PreTrainedConfig) -> str:
    """DebertaV2ForSequenceClassification -> "SequenceClassification"; a bare encoder -> ""."""
    named = config.architectures or [""]
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise ValueError(f"config.json: architectures={named!r} is not a list of names")
    architecture = named[0]
    return architecture.rpartition("For")[2] if "For" in architecture else ""


def _head_fields(kind: Kind, labels: tuple[str, ...]) -> dict[str, object]:
    """Config fields of a head for a kind of task."""
    fields: dict[str, object] = {}
    if kind == "regression":
        fields["num_labels"] = 1
    elif labels:
        fields["id2label"] = dict(enumerate(labels))
        fields["label2id"] = {label: index for index, label in enumerate(labels)}
    if kind in PROBLEM_TYPES:
        fields["problem_type"] = PROBLEM_TYPES[kind]
    return fields


def _encoder_of(
    path: str | Path, cls: type[PreTrainedModel], config: DebertaConfig, fields: dict[str, object]
) -> PreTrainedModel:
    """Load the encoder of a DeBERTa-D with a new head."""
    whole = DebertaForSeq2SeqLM.from_pretrained(path, dtype=torch.float32)
    model = cls(DebertaConfig.from_dict(config.to_dict(), **fields))
    model.deberta.load_state_dict(whole.encoder.state_dict())
    return model


# ------------------------------------------------------------------------------------------------------------ adapters


def _describe_adapter(folder: Path) -> SavedModel:
    adapter = _json(folder, ADAPTER_FILE)
    base = adapter.get(BASE_MODEL)
    if not base:
        raise ValueError(f"{folder} is an adapter whose {ADAPTER_FILE} names no base model")
    found = describe(base)
    head = ADAPTED_HEADS.get(str(adapter.get("task_type")), found.head)
    config = found.config
    outputs = _head_outputs(folder)
    if head in HEADS.values() and outputs is not None and outputs != config.num_labels:
        config = type(config).from_dict({**config.to_dict(), "id2label": {i: f"LABEL_{i}" for i in range(outputs)}})
    return replace(found, config=config, head=head, settings=TaskSettings.read(folder), adapter=folder)


def _head_outputs(folder: Path) -> int | None:
    """Number of labels of the head that an adapter holds, or None."""
    from safetensors import safe_open

    file = folder / "adapter_model.safetensors"
    if not file.is_file():
        return None
    with safe_open(file, "pt") as tensors:
        heads = [name for name in tensors.keys() if re.search(r"(classifier|score|out_proj)\.weight$", name)]  # noqa: SIM118
        return tensors.get_slice(heads[-1]).get_shape()[0] if heads else None


def _merged(cls: type[PreTrainedModel], saved: SavedModel, adapter: Path) -> PreTrainedModel:
    """Load the base model with the adapter merged into its weights."""
    try:
        from peft import PeftModel
    except ImportError:
        raise ImportError(f"{saved} is an adapter; loading it needs peft: pip install peft") from None
    labels = labels_of(saved.config) if saved.head in HEADS.values() else ()
    fields = {"id2label": dict(enumerate(labels)), "label2id": {x: i for i, x in enumerate(labels)}} if labels else {}
    loading = {"dtype": torch.float32, "ignore_mismatched_sizes": True, **_safe(saved.ours)}
    base = cls.from_pretrained(saved.name, **loading, **fields)
    return PeftModel.from_pretrained(base, adapter).merge_and_unload().eval()


# --------------------------------------------------------------------------------------------------------------- files


def _stored_pooling(name: str) -> str:
    stored = _json(name, POOLING_FILE)
    named = stored.get("pooling_mode")
    modes = [named] if isinstance(named, str) else list(named or ())
    modes += [key.removeprefix("pooling_mode_") for key, on in stored.items() if key.startswith("pooling_mode_") and on]
    short = {"cls_token": "cls", "mean_tokens": "mean"}
    found = {short.get(mode, mode) for mode in modes} or {"mean"}
    if len(found) > 1 or not found <= {"mean", "cls"}:
        raise ValueError(f"{name} pools by {', '.join(sorted(found))}; only mean and cls are supported")
    return found.pop()


def _find(name: str | Path, file: str) -> Path | None:
    """Find a file of a folder or hub model. None if there is no such file."""
    folder = Path(name)
    path = folder / file if folder.exists() else hub_file(str(name), file)
    return path if path is not None and path.is_file() else None


def _json(name: str | Path, file: str) -> dict[str, Any]:
    """Read a JSON file of a folder or hub model. Empty if there is no such file."""
    path = _find(name, file)
    if path is None:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a JSON file: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} should hold a JSON object, and holds a {type(content).__name__}")
    return content


@contextmanager
def _readable(name: object, problem: str) -> Iterator[None]:
    """Turn what transformers and torch raise on damaged or hostile files into a ValueError that names the model."""
    try:
        yield
    except (ValueError, OSError, ImportError, MemoryError):
        raise
    except Exception as error:
        raise ValueError(f"{name}: {problem}: {_first_line(error)} ({type(error).__name__})") from error


def _safe(ours: bool) -> dict[str, Any]:
    """Never run code from a model folder. Our classes have no such option."""
    return {} if ours else {"trust_remote_code": False}


def _tried(path: str, load: Callable[[str], PreTrainedTokenizerFast]) -> PreTrainedTokenizerFast:
    """Load a tokenizer and use it once: some damaged files fail only then, also with a panic of the Rust side."""
    try:
        with _readable(path, "the tokenizer cannot be used"):
            tokenizer = load(path)
            longest = tokenizer.model_max_length
            if isinstance(longest, bool) or not isinstance(longest, (int, float)) or not longest >= 1:
                raise ValueError(f"{path}: model_max_length={longest!r} in tokenizer_config.json must be >= 1")
            tokenizer.model_max_length = int(longest)
            tokenizer(["a b", "a b"], ["c", "c"], truncation=True, max_length=8, return_overflowing_tokens=True)
            return tokenizer
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # pyo3 gives no way to import the class
            raise
        raise ValueError(f"{path}: the tokenizer cannot be used: {error}") from None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
