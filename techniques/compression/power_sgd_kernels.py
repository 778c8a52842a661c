"""Tensor code of the low-rank compressors. M [n, m] is a gradient seen as a matrix, P [n, r], Q [m, r]."""

from __future__ import annotations

import torch
from torch import Tensor


def factor(rows: int, r: int, generator: torch.Generator) -> Tensor:
    """Return a normal fp32 factor [rows, r]; equal on every rank when the generators are."""
    return torch.randn(rows, r, generator=generator, device=generator.device)


def orthonormal(factor: Tensor) -> Tensor:
    """Return an orthonormal basis [n, r] of the columns of `factor`; QR in fp32, so equal inputs give equal bits."""
    basis: Tensor = torch.linalg.qr(factor.float(), mode="reduced").Q
    return basis


def as_matrix(gradient: Tensor) -> Tensor:
    """Return `gradient` as [n, m] in fp32: its first dim by all others."""
    return gradient.flatten(1).float()


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return `left @ right.T`: P [n, r], Q [m, r] -> [n, m]."""
    return left.float() @ right.float().T
