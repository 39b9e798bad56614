"""Helpers for code that torch traces: detect tracing, and mark functions whose result is a graph constant."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

T = TypeVar("T")


def constant_in_graphs(function: Callable[..., T]) -> Callable[..., T]:
    """Same as torch.compiler.assume_constant_result, without importing the compiler, which takes two seconds."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant_in_graphs
def transformed() -> bool:
    """Return whether torch.func (vmap, grad, jvp) or forward-mode differentiation is active.

    Our operators support neither and would silently drop a tangent.
    """
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def eager(x: Tensor) -> bool:
    """Return whether this is an eager call: no tracing, no torch.func transform, no dispatch mode."""
    return (
        not torch.compiler.is_compiling()
        and type(x) is Tensor
        and torch._C._len_torch_dispatch_stack() == 0
        and not transformed()
    )


def fixed_shapes() -> bool:
    """Return whether shapes must not depend on values: in torch.compile, torch.export, torch.jit.trace, torch.func."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or transformed()


def exporting() -> bool:
    """Return whether the graph is exported to other software, which does not have our operators."""
    return torch.compiler.is_exporting() or torch.jit.is_tracing()
