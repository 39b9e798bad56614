"""Options of ``deberta bench``. Light to import: an instruction set is selected before torch is imported."""

import os
from dataclasses import dataclass
from typing import Literal

ISAS = ("avx2", "avx512")


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

    def selected(self, works: dict[str, list[int]], quick: tuple[str, ...]) -> dict[str, list[int]]:
        """Return the workloads to run: those of ``work``, or of a quick run, or all."""
        unknown = [name for name in self.work or [] if name not in works]
        if unknown:
            raise ValueError(f"--work {unknown[0]}: this suite has {', '.join(works)}")
        return {name: works[name] for name in self.work or (quick if self.quick else works)}

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
