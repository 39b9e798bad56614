"""Certificates of a lower precision: how often a model decides differently than in fp32, on the user's own texts.

    deberta certify MODEL texts.csv                 bf16; the certificate is stored in MODEL/precision.json
    deberta certify MODEL texts.csv --export DIR    int8, from 'deberta export onnx MODEL --int8'; stored in DIR

``load(MODEL, precision="auto")`` uses bf16 if MODEL has a certificate that passed, its weights have not changed since,
and the CPU or GPU computes bf16 natively. Otherwise it uses fp32.
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from debertakit.files import file_hash, naming, write_json
from debertakit.loading import SavedModel
from debertakit.precision import Resolved, best_device, has_native_bf16
from debertakit.protocols import Precision

CERTIFICATE_FILE = "precision.json"
WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "model.onnx*")


@dataclass(frozen=True)
class Certificate:
    precision: str
    """bf16 or int8."""
    texts: str
    """Name of the file."""
    rows: int
    flips: int
    """Rows with another decision than in fp32."""
    drift: float
    """Largest difference of an output (logit)."""
    tolerance: float
    """Largest accepted share of flips."""
    weights: str
    """Hash of the weight files."""

    @property
    def passed(self) -> bool:
        return self.flips <= self.tolerance * self.rows

    def __str__(self) -> str:
        verdict = "certified" if self.passed else "not certified"
        return (
            f"{self.precision}: {self.flips:,} of {self.rows:,} decisions differ from fp32 "
            f"({self.flips / self.rows:.2%}), largest difference of an output {self.drift:.4f}: "
            f"{verdict} (tolerance {self.tolerance:.2%})"
        )

    def save(self, folder: Path) -> Path:
        write_json(folder / CERTIFICATE_FILE, asdict(self))
        return folder / CERTIFICATE_FILE

    @classmethod
    def read(cls, folder: Path) -> "Certificate | None":
        file = folder / CERTIFICATE_FILE
        if not file.is_file():
            return None
        with naming(file):
            stored = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(stored, dict) or stored.keys() != {each.name for each in fields(cls)}:
                raise ValueError("not a certificate of this version; run deberta certify again")
        return cls(**stored)


def certified(saved: SavedModel, wanted: Precision) -> Resolved:
    """Resolve ``auto``: bf16 if it is certified for these weights and native on this device."""
    if wanted != "auto":
        return wanted
    folder = Path(str(saved))
    found = Certificate.read(folder)
    if found is None or found.precision != "bf16" or not found.passed or not has_native_bf16(best_device()):
        return "fp32"
    return "bf16" if found.weights == hash_of_weights(folder) else "fp32"


def hash_of_weights(folder: Path) -> str:
    files = sorted(file for pattern in WEIGHTS for file in folder.glob(pattern))
    return " ".join(file_hash(file, "blake2b") for file in files)
