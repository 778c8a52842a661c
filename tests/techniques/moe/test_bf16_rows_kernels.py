"""Rows as bf16: two bytes a number, rounded as torch rounds."""

import torch

from techniques.moe.bf16_rows_kernels import decode, encode


def test_rows_come_back_rounded_to_bf16() -> None:
    rows = torch.randn(5, 7, generator=torch.Generator().manual_seed(3))
    packed = encode(rows)
    assert packed.dtype == torch.uint8
    assert packed.shape == (5, 14)
    assert torch.equal(decode(packed), rows.bfloat16())
    assert decode(encode(torch.empty(0, 7))).shape == (0, 7)
