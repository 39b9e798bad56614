"""What code that torch traces has to know: is it being traced, and what is a constant of the graph."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch.autograd import forward_ad

T = TypeVar("T")


def constant_in_graphs(function: Callable[..., T]) -> Callable[..., T]:
    """torch.compiler.assume_constant_result without its import of the compiler, which takes two seconds."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant_in_graphs
def transformed() -> bool:
    """Whether torch.func (vmap, grad, jvp) or forward-mode differentiation transforms this call. Our operators know
    neither, and would drop a tangent silently."""
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def fixed_shapes() -> bool:
    """Whether shapes may not depend on values: under torch.compile, torch.export, torch.jit.trace and torch.func."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or transformed()


def exporting() -> bool:
    """Whether the graph is for other software, which has no operators of ours."""
    return torch.compiler.is_exporting() or torch.jit.is_tracing()
