"""Experts over rows in pieces, one after another: on a GPU a kernel that waits for the device gets it in between.

Shapes: R rows, expert after expert; M their width. Every piece has its share of each expert's rows, so each is the same products
with fewer rows. A row's result does not hang on the others beyond rounding; the parameters' gradients are sums over pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from orch.models.zoo.mixture import Experts

Saved = tuple[Tensor, ...]


def forward(experts: Experts, rows: Tensor, counts: Sequence[int], pieces: int) -> tuple[Tensor, Saved]:
    """Return the outputs [R, M] of `rows` [R, M], of which each expert has `counts`, and what backward needs of each."""
    if pieces == 1:
        return experts.run(rows, counts)
    found = [(where, *experts.run(rows[where], own)) for where, own in shares(counts, pieces)]
    back = torch.argsort(torch.cat([where for where, _, _ in found])).to(rows.device)
    outputs = torch.cat([outputs for _, outputs, _ in found])[back]
    return outputs, tuple(torch.cat(parts)[back] for parts in zip(*(saved for _, _, saved in found), strict=True))


def backward(
    experts: Experts, gradient: Tensor, saved: Saved, counts: Sequence[int], pieces: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the gradients of rows [R, M], and of the parameters by name, from those of the outputs [R, M]."""
    if pieces == 1:
        return experts.backward_rows(gradient, saved, counts)
    of_rows = torch.empty_like(gradient)
    total: dict[str, Tensor] = {}
    for where, own in shares(counts, pieces):
        part, found = experts.backward_rows(gradient[where], tuple(one[where] for one in saved), own)
        of_rows[where] = part
        for name, value in found.items():
            total[name] = value if name not in total else total[name].add_(value)
    return of_rows, total


def shares(counts: Sequence[int], pieces: int) -> Iterator[tuple[Tensor, list[int]]]:
    """Yield, for each piece, which rows it has and how many of each expert."""
    starts = [0, *accumulate(counts)]
    for piece in range(pieces):
        bounds = [(count * piece // pieces, count * (piece + 1) // pieces) for count in counts]
        where = [torch.arange(start + a, start + b) for start, (a, b) in zip(starts, bounds, strict=False)]
        yield torch.cat(where) if where else torch.empty(0, dtype=torch.int64), [b - a for a, b in bounds]
