"""Tensor code of top-k. Shapes: gradients [numel], indices int32 [k], values [k]; P ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def select(gradient: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return indices (int32, ascending) and values of the k entries largest in magnitude; ties go to smaller indices.

    NaN counts as infinitely large, so that it is sent and seen rather than kept back.
    """
    size = gradient.abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    least = torch.topk(size, k, sorted=True).values[-1]
    above = (size > least).nonzero().flatten()
    equal = (size == least).nonzero().flatten()[: k - above.numel()]
    indices = torch.cat((above, equal)).sort().values
    return indices.to(torch.int32), gradient[indices]


def subtract(accumulated: Tensor, indices: Tensor, values: Tensor) -> None:
    """Subtract `values` at `indices` from `accumulated` (any shape), in place."""
    accumulated.view(-1)[indices.long()] -= values.to(accumulated.dtype)


def mean(indices: Sequence[Tensor], values: Sequence[Tensor], numel: int) -> Tensor:
    """Return the mean over ranks of what each sent: P x (indices, values) [k] -> fp32 [numel], summed in rank order."""
    total = torch.zeros(numel, dtype=torch.float32, device=values[0].device)
    for where, what in zip(indices, values, strict=True):
        # Within one rank indices are distinct, so this adds each value once, in an order that is the same everywhere.
        total[where.long()] += what.float()
    return total.div_(len(values))
