"""What to compute on, and in."""

import torch


def best_device() -> torch.device:
    """A GPU, if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def precision(asked: str, device: torch.device) -> torch.dtype | None:
    """bf16 where the hardware computes in it, else fp32. Emulated bf16 on a CPU is slower than fp32."""
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    if asked == "bf16" and not native:
        raise ValueError(f"precision=bf16: this {device.type} does not compute in bf16; use auto or fp32")
    return torch.bfloat16 if native and asked != "fp32" else None
