"""Rows as bf16, in bytes. Q rows of M numbers."""

import torch
from torch import Tensor


def encode(rows: Tensor) -> Tensor:
    """Return `rows` [Q, M] as bytes [Q, 2M]."""
    return rows.to(torch.bfloat16).contiguous().view(torch.uint8)


def decode(packed: Tensor) -> Tensor:
    """Return bytes [Q, 2M] as rows [Q, M], bf16."""
    return packed.view(torch.bfloat16)
