"""Finished blocks of a prediction job, in the folder ``OUT.parts``.

    job.json          what the job computes (JobRecord), with hashes of the input, the weights and the tokenizer
    00000000.jsonl    one block: a header with its number, row count and checksum, then one line per row
    done.json         written when OUT is complete, and deleted last (FinishedJob)

A block is flushed to disk and then renamed. It is used only if its number, row count and checksum are right; otherwise
it is computed again. The folder is locked while a command uses it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

import torch
from torch import nn

from debertakit.files import TEMPORARY, bytes_hash, file_hash, locked, require_new, write_json, write_text
from debertakit.inference.output import RowPrediction, to_json
from debertakit.inference.predictor import Network, Predictor, Result
from debertakit.protocols import Tokenizer

JOB, DONE = "job.json", "done.json"
UNRELATED = ("_name_or_path", "name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype")
"""Config fields that do not change a prediction."""


class JobRecord(TypedDict):
    """Fingerprint of a job. Finished blocks are reused only if it is the same.

    Weights, config and tokenizer are hashed as they were loaded, so a hub model with a new revision, a replaced file
    and a changed adapter are all noticed.
    """

    input: list[str]
    columns: dict[str, str]
    model: str
    weights: str
    config: str
    tokenizer: str
    task: list[str]
    options: dict[str, object]
    block: int


class FinishedJob(TypedDict):
    """A job whose output is complete."""

    job: JobRecord
    output: str
    """Hash of OUT."""
    rows: int
    errors: int


def job_record(
    predictor: Predictor[Result], source: Path, columns: Mapping[str, str], name: str, block: int
) -> JobRecord:
    name = name or getattr(predictor.model, "name_or_path", "")
    config = {key: value for key, value in predictor.model.config.to_dict().items() if key not in UNRELATED}
    job = JobRecord(
        input=[ascii(str(source.resolve())), file_hash(source, "blake2b")],
        columns=dict(columns),
        model=ascii(str(Path(name).resolve()) if name and Path(name).is_dir() else name),
        weights=_weights_hash(predictor.model),
        config=bytes_hash([json.dumps(config, sort_keys=True, default=str).encode()]),
        tokenizer=_tokenizer_hash(predictor.tokenizer),
        task=[type(predictor).__name__, type(predictor.model).__name__],
        options=predictor.settings(),
        block=block,
    )
    return json.loads(json.dumps(job))  # tuples become lists, as in the stored record


def _weights_hash(model: Network) -> str:
    if isinstance(model, nn.Module):
        tensors = sorted(model.state_dict().items())
        raw = (tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy() for _, tensor in tensors)
        names = [f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors]
        return bytes_hash(["\n".join(names).encode(), *raw])
    from debertakit.inference.onnx import OnnxModel

    return "".join(file_hash(file, "blake2b") for file in model.files) if isinstance(model, OnnxModel) else ""


def _tokenizer_hash(tokenizer: Tokenizer) -> str:
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state |= {"truncation": None, "padding": None}  # left by the last call
    specials = [tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id]
    return bytes_hash([json.dumps([state, specials], sort_keys=True).encode()])


def parts_of(target: Path) -> Path:
    return target.with_name(target.name + ".parts")


@contextmanager
def open_parts(target: Path, job: JobRecord) -> Iterator[Path]:
    """Create and lock the folder of blocks, or reopen it if it belongs to the same, interrupted job."""
    parts = parts_of(target)
    if parts.exists() and not parts.is_dir():
        raise ValueError(f"{parts} already exists and was not written by a job; remove it, or choose another output")
    parts.mkdir(parents=True, exist_ok=True)
    with locked(parts):
        if target.exists() and not any(parts.iterdir()):  # another command has just completed OUT
            parts.rmdir()
        require_new(target)
        _claim(parts, job)
        yield parts


def _claim(parts: Path, job: JobRecord) -> None:
    record = parts / JOB
    if record.exists():
        changed = _changes(record, job)
        if changed:
            raise ValueError(
                f"{parts} belongs to another job ({changed}); remove it to start again, or choose another output"
            )
        return
    if any(file.suffix != TEMPORARY and file.name != DONE for file in parts.iterdir()):
        raise ValueError(f"{parts} already exists and was not written by a job; remove it, or choose another output")
    write_json(record, job)


def finish(parts: Path, job: JobRecord, output: Path, rows: int, errors: int) -> None:
    """Record that ``output`` is complete. Call this before ``output`` gets its final name."""
    write_json(parts / DONE, FinishedJob(job=job, output=file_hash(output, "blake2b"), rows=rows, errors=errors))


def remove_parts(parts: Path) -> None:
    """Delete the folder, and ``done.json`` last: until then the next command can see that OUT is complete."""
    for file in sorted(parts.iterdir(), key=lambda file: (file.name == DONE, file.name == JOB)):
        file.unlink()
    parts.rmdir()


def finished_job(target: Path) -> FinishedJob | None:
    """The job that completed ``target`` but was interrupted before ``OUT.parts`` was deleted. Deletes ``OUT.parts``."""
    parts = parts_of(target)
    if not target.is_file() or not parts.is_dir():
        return None
    with locked(parts):
        if not any(parts.iterdir()):
            parts.rmdir()
            return None
        try:
            done: FinishedJob = json.loads((parts / DONE).read_text(encoding="utf-8"))
            complete = done["output"] == file_hash(target, "blake2b")
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if not complete:
            return None
        remove_parts(parts)
    return done


def _changes(record: Path, job: JobRecord) -> str:
    """Names of the fields that differ from the stored record; "" if it is the same job."""
    try:
        stored = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return f"{JOB} is damaged"
    if not isinstance(stored, dict) or stored.keys() != job.keys():
        return f"{JOB} is damaged or from another version"
    names = [name for name, value in job.items() if stored[name] != value]
    return f"another {', '.join(names)}" if names else ""


def write_block(parts: Path, number: int, predictions: Sequence[RowPrediction]) -> None:
    body = "".join(to_json(row) + "\n" for row in predictions)
    header = {"block": number, "rows": len(predictions), "checksum": bytes_hash([body.encode()])}
    write_text(_file(parts, number), json.dumps(header) + "\n" + body)


def read_block(parts: Path, number: int, rows: int) -> list[RowPrediction] | None:
    """Read a finished block of ``rows`` rows. None if it is not there, damaged or unreadable."""
    try:
        header, _, body = _file(parts, number).read_bytes().partition(b"\n")
    except OSError:
        return None
    expected = {"block": number, "rows": rows, "checksum": bytes_hash([body])}
    if header != json.dumps(expected).encode():
        return None
    lines = body.decode().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def finished_blocks(parts: Path) -> int:
    """Number of block files, damaged or not."""
    return len(list(parts.glob("*.jsonl")))


def _file(parts: Path, number: int) -> Path:
    return parts / f"{number:08d}.jsonl"
