"""Options of ``deberta bench``. Light to import: an instruction set is selected before torch is imported."""

import os
from dataclasses import dataclass
from typing import Literal

ISAS = ("avx2", "avx512")
# 32 quantiles of the lengths of 10,000 MNLI training pairs under the v3 tokenizer, [CLS] and [SEP]s included.
MNLI_LENGTHS = [12, 16, 18, 19, 21, 22, 24, 25, 26, 27, 29, 30, 31, 33, 34, 35,
                37, 38, 39, 41, 42, 44, 45, 47, 49, 51, 54, 56, 60, 64, 71, 86]  # fmt: skip
_SQUARES = {"8x128": [128] * 8, "4x512": [512] * 4, "1x2048": [2048]}
WORKS = {
    "inference": {"1x16": [16], "1x32": [32], **_SQUARES, "1x8192": [8192], "mnli32": MNLI_LENGTHS},
    "training": {"16x128": [128] * 16, "4x512": [512] * 4, "small": []},
    "memory": {f"1x{length}": [length] for length in (1024, 2048, 4096, 8192)},
    "attention": {"1x32": [32], **_SQUARES},
}
"""Lengths of the sequences of each workload, by suite. ``small`` is a step of that recipe."""
QUICK = {
    "inference": ("1x16", "8x128", "mnli32"),
    "training": ("16x128", "small"),
    "memory": ("1x1024", "1x2048"),
    "attention": ("8x128", "4x512"),
}


@dataclass(frozen=True)
class BenchOptions:
    quick: bool = False
    """Fewer layers, workloads and rounds; under 50 seconds."""
    work: list[str] | None = None
    """Only this workload, for example 8x128; repeatable."""
    layers: int | None = None
    """Layers of the v3-base shape. Default: 4; with --quick, 2."""
    seconds: float | None = None
    """Time per workload, for all contestants together. Default: 12; twice as long in training."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of all contestants: of the weights in inference, of autocast in training."""
    isa: Literal["avx2", "avx512"] | None = None
    """Newest instruction set that torch, its libraries and our kernel may use. Default: all that the CPU has."""

    def __post_init__(self) -> None:
        if self.precision not in ("fp32", "bf16"):
            raise ValueError(f"--precision {self.precision}: choose fp32 or bf16")
        if self.isa not in (None, *ISAS):
            raise ValueError(f"--isa {self.isa}: choose {' or '.join(ISAS)}")
        if self.seconds is not None and self.seconds <= 0:
            raise ValueError(f"--seconds {self.seconds}: must be above 0")

    @property
    def depth(self) -> int:
        return self.layers or (2 if self.quick else 4)

    @property
    def time(self) -> float:
        return self.seconds or (2.0 if self.quick else 12.0)

    def works(self, suite: str) -> dict[str, list[int]]:
        """Return the workloads to run: those of ``work``, or of a quick run, or all."""
        unknown = [name for name in self.work or [] if name not in WORKS[suite]]
        if unknown:
            raise ValueError(f"--work {unknown[0]}: bench {suite} has {', '.join(WORKS[suite])}")
        return {name: WORKS[suite][name] for name in self.work or (QUICK[suite] if self.quick else WORKS[suite])}

    def apply_isa(self) -> None:
        """Set the environment variables that torch, oneDNN, MKL and our kernel read when they are loaded."""
        if self.isa is not None:
            os.environ |= {
                "DEBERTAKIT_KERNEL": self.isa,
                "ATEN_CPU_CAPABILITY": self.isa,
                "ONEDNN_MAX_CPU_ISA": {"avx2": "AVX2", "avx512": "AVX512_CORE"}[self.isa],
                "MKL_ENABLE_INSTRUCTIONS": self.isa.upper(),
            }
            if self.isa == "avx2":
                os.environ["DEBERTAKIT_BF16"] = "0"
