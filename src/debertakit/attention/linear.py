"""Linear layers through oneDNN, where it is faster than torch's default.

    linear(layer, x) = layer(x)          multiply(x, weight, bias) = x weight^T + bias

torch computes fp32 products in MKL, which uses 256-bit instructions on AMD's CPUs. Since Zen 5 these have full 512-bit
units, and oneDNN takes less than half of MKL's time (benchmarks/linear.py). Layers of a model that no longer changes
(``pack``) are also stored in oneDNN's blocked layout, which matters for short texts: without it, oneDNN rearranges the
weights in each call. Packed weights are a second copy.

The choice depends on the CPU only. Both differ by rounding, so a measurement would make results depend on what else the
machine does. DEBERTAKIT_LINEAR=torch or onednn forces one. bf16 products go through oneDNN in torch as well, so there
only packed weights can be faster. Under autocast, and in graphs that torch traces, layers are called as usual.
"""

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from debertakit.attention.graphs import eager

if TYPE_CHECKING:
    from typing_extensions import TypeIs

SMALLEST = 2**16
"""Weights of a product that goes through oneDNN. Below, the overhead of a call counts as much as the product."""
ZEN_5 = 26
"""CPU family."""
# torch and oneDNN each keep the compiled products of 1,024 shapes: with texts of any length, half a gigabyte after 300
# batches. They read these variables at their first product.
for _cache in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
    os.environ.setdefault(_cache, "64")

_DENSE = (Tensor, nn.Parameter)
_packed: WeakKeyDictionary[nn.Module, tuple[int, Tensor] | None] = WeakKeyDictionary()
"""Layers that no longer change: address of the weight, packed weight. None: not packed yet."""


def linear(layer: nn.Module, x: Tensor) -> Tensor:
    if not is_plain(layer):
        return layer(x)
    weight, bias = layer._parameters["weight"], layer._parameters["bias"]  # faster than layer.weight
    if weight is None or not _fits(x, weight):
        return layer(x)
    trained = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    if not trained and layer in _packed and _uses_onednn(x.dtype, packed=True):
        return _product(x, _packed_weight(layer, weight), bias)
    return multiply(x, weight, bias)


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if not _fits(x, weight) or x.dtype != torch.float32 or not _uses_onednn(torch.float32, packed=False):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        return _Linear.apply(x, weight, bias)
    return _product(x, weight, bias)


def pack(model: nn.Module) -> None:
    """Declare that the weights of ``model`` no longer change, so that its layers may keep packed copies.

    Moving the model to another device or dtype is still detected.
    """
    for module in model.modules():
        if type(module) is nn.Linear:
            _packed[module] = None


def is_plain(layer: nn.Module) -> "TypeIs[nn.Linear]":
    """Return whether this is a linear layer without adapters and hooks, which can change outputs but not weights."""
    return (
        type(layer) is nn.Linear
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
        and not layer._backward_hooks
        and not layer._backward_pre_hooks
        and "forward" not in layer.__dict__
    )


def choice() -> str:
    """Say in a word or two how fp32 products are computed here, for ``deberta doctor``."""
    return "oneDNN" if _uses_onednn(torch.float32, packed=False) else "torch's default"


def _fits(x: Tensor, weight: Tensor) -> bool:
    return (
        weight.numel() >= SMALLEST
        and x.dtype is weight.dtype
        and x.dtype in (torch.float32, torch.bfloat16)
        and x.numel() > 0
        and type(weight) in _DENSE
        and weight.device.type == "cpu"
        and eager(x)
        and not torch.jit.is_tracing()
        and not torch.is_autocast_enabled("cpu")
    )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _packed_weight(layer: nn.Linear, weight: Tensor) -> Tensor:
    kept, address = _packed[layer], weight.data_ptr()
    if kept is None or kept[0] != address:
        kept = _packed[layer] = address, torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
    return kept[1]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        # With create_graph=True, the gradient itself is differentiated, which _product does not support.
        multiply = F.linear if torch.is_grad_enabled() else _product
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows = grad.flatten(0, -2)
        return (
            multiply(grad, weight.t(), None) if needs_x else None,
            multiply(rows.t(), x.flatten(0, -2).t(), None) if needs_weight else None,
            rows.sum(0) if needs_bias else None,
        )


@lru_cache
def _uses_onednn(dtype: torch.dtype, packed: bool) -> bool:
    forced = os.environ.get("DEBERTAKIT_LINEAR", "")
    if forced not in ("", "torch", "onednn"):
        raise ValueError(f"DEBERTAKIT_LINEAR={forced!r}: must be torch or onednn")
    if forced == "torch" or not hasattr(torch.ops.mkldnn, "_linear_pointwise") or not torch.backends.mkldnn.enabled:
        return False
    if dtype is torch.bfloat16:
        return packed and (forced == "onednn" or torch.cpu._is_avx512_bf16_supported())
    return forced == "onednn" or (_amd_family() >= ZEN_5 and torch.backends.cpu.get_cpu_capability() == "AVX512")


def _amd_family() -> int:
    """Return the family of an AMD CPU, 0 for others."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(errors="replace") if cpuinfo.exists() else ""
    family = re.search(r"^cpu family\s*:\s*(\d+)", text, re.MULTILINE)
    return int(family[1]) if family is not None and "AuthenticAMD" in text else 0
