"""Block floating point: the numbers of a block share an exponent and have eight bits of two's complement each.

Q rows of M numbers, K = ceil(M / block) blocks a row.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

BIAS, NO_NUMBER = 127, 255


def encode(rows: Tensor, block: int) -> Tensor:
    """Return `rows` [Q, M] as bytes [Q, M + K]; each number off by at most 1/128 of the largest of its block.

    A block with a number that is not finite is marked, and none of it is read again.
    """
    hidden = rows.shape[1]
    count = -(-hidden // block)
    blocks = F.pad(rows.float(), (0, count * block - hidden)).view(rows.shape[0], count, block)
    largest = blocks.abs().amax(2)
    finite = largest.isfinite()
    exponent = torch.frexp(torch.where(finite, largest, torch.zeros_like(largest)))[1].clamp(-BIAS + 1, 127)
    scaled = torch.ldexp(blocks, (7 - exponent).unsqueeze(2)).round()
    numbers = torch.where(finite.unsqueeze(2), scaled, torch.zeros_like(scaled)).clamp(-128, 127).to(torch.int8)
    marks = torch.where(finite, exponent + BIAS, torch.full_like(exponent, NO_NUMBER)).to(torch.uint8)
    return torch.cat([numbers.view(rows.shape[0], count * block)[:, :hidden].contiguous().view(torch.uint8), marks], 1)


def decode(packed: Tensor, hidden: int, block: int) -> Tensor:
    """Return bytes [Q, M + K] as rows [Q, M], fp32; marked blocks are NaN."""
    numbers = packed[:, :hidden].contiguous().view(torch.int8).float()
    marks = packed[:, hidden:].repeat_interleave(block, 1)[:, :hidden]
    rows = torch.ldexp(numbers, marks.int() - BIAS - 7)
    return torch.where(marks == NO_NUMBER, torch.full_like(rows, torch.nan), rows)
