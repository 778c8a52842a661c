"""Tensor code of error feedback. Gradients and residuals have the parameter's shape."""

from __future__ import annotations

import torch
from torch import Tensor


def residual(gradient: Tensor) -> Tensor:
    """Return a residual of zeros for `gradient`, contiguous whatever the gradient's own memory order."""
    return torch.zeros_like(gradient, memory_format=torch.contiguous_format)


def compensate(gradient: Tensor, kept: Tensor, decay: float) -> None:
    """Add `decay` times the residual to the gradient, in place; the residual becomes a copy of the sum."""
    if decay != 1.0:
        kept.mul_(decay)
    kept.add_(gradient)
    gradient.copy_(kept)
