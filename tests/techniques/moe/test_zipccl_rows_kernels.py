"""Rows without loss: every bit comes back, whatever the numbers, lengths and parts, and near-normal ones get smaller."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from techniques.moe.zipccl_rows import TRAVELS
from techniques.moe.zipccl_rows_kernels import FLOATS, decode, encode

SPECIAL = [0.0, -0.0, 1.0, -1.5, float("inf"), float("-inf"), float("nan"), 1e-40, -1e-45, 3.4e38, 1e-30, 65504.0, 6e-8]


def check_there_and_back(rows: Tensor, counts: list[int], dtype: str) -> int:
    """Assert that `rows` come back bit for bit, each part no larger than it was; return the bytes in between."""
    packed, sizes = encode(rows, counts, dtype)
    assert packed.dtype == torch.uint8
    assert packed.shape == (sum(sizes), 1)
    row = rows.shape[1] * rows.element_size()
    assert all(size <= count * row for size, count in zip(sizes, counts, strict=True))
    back = decode(packed, counts, sizes, rows.shape[1], dtype)
    assert back.dtype == rows.dtype
    assert torch.equal(back.view(FLOATS[dtype].integers), rows.view(FLOATS[dtype].integers))
    return sum(sizes)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("width", [1, 8, 256])
def test_every_pattern_of_sixteen_bits_comes_back(dtype: str, width: int) -> None:
    patterns = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    rows = patterns.view(FLOATS[dtype].dtype).view(-1, width)
    check_there_and_back(rows, [rows.shape[0]], dtype)
    # And beside numbers for which a window is worth it.
    mixed = torch.randn(64, 257, generator=torch.Generator().manual_seed(0)).to(rows.dtype)
    mixed[:, :1] = patterns[::1024].view(rows.dtype).view(64, 1)
    check_there_and_back(mixed, [10, 0, 54], dtype)


@st.composite
def parts(draw: st.DrawFn) -> tuple[Tensor, list[int], str]:
    """Rows of any bits, normal numbers and special ones, of odd lengths, in parts of which some are empty."""
    dtype = draw(st.sampled_from(list(FLOATS)))
    form = FLOATS[dtype]
    counts = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    width = draw(st.sampled_from([1, 2, 7, 8, 9, 31, 64, 255]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 20)))
    rows = torch.randn(sum(counts), width, generator=generator) * draw(st.sampled_from([0.0, 1e-42, 1e-3, 1.0, 1e30]))
    rows = rows.to(form.dtype)
    kind = draw(st.sampled_from(["normal", "special", "bits", "half"]))
    if kind == "bits":
        size = rows.numel() * rows.element_size()
        rows = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator).view(form.dtype).view_as(rows)
    elif kind != "normal":
        values = torch.tensor(SPECIAL).to(form.dtype)
        chosen = values[torch.randint(0, len(SPECIAL), rows.shape, generator=generator)]
        often = torch.rand(rows.shape, generator=generator) < (0.05 if kind == "half" else 0.7)
        rows = torch.where(often, chosen, rows)
    return rows, counts, dtype


@settings(deadline=None, max_examples=200)
@given(parts())
def test_whatever_is_sent_comes_back_bit_for_bit(case: tuple[Tensor, list[int], str]) -> None:
    check_there_and_back(*case)


@pytest.mark.parametrize("dtype", list(FLOATS))
@pytest.mark.parametrize("scale", [1e-3, 0.7, 1.0, 13.0])
def test_normal_numbers_take_what_a_plan_expects(dtype: str, scale: float) -> None:
    rows = (torch.randn(64, 1024, generator=torch.Generator().manual_seed(2)) * scale).to(FLOATS[dtype].dtype)
    share = check_there_and_back(rows, [20, 44], dtype) / (rows.numel() * rows.element_size())
    assert share == pytest.approx(TRAVELS[dtype] / 1000, rel=0.02 if scale > 0.1 else 0.05)


def test_slots_that_nobody_took_are_packed_too_and_noise_is_sent_as_it_is() -> None:
    assert check_there_and_back(torch.zeros(4, 64, dtype=torch.bfloat16), [4], "bf16") == 4 * FLOATS["bf16"].width(64)
    noise = torch.randint(0, 256, (4 * 128,), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    assert check_there_and_back(noise.view(torch.bfloat16).view(4, 64), [1, 3], "bf16") == 4 * 128


@pytest.mark.parametrize("counts", [[], [0], [0, 0, 0]])
def test_no_row_at_all(counts: list[int]) -> None:
    for dtype, form in FLOATS.items():
        assert check_there_and_back(torch.empty(0, 9, dtype=form.dtype), counts, dtype) == 0


def test_the_window_lies_where_the_paper_s_numbers_put_it() -> None:
    # Sigma 1: exponents 122 to 128, codes 1 to 7; what is not among them has code 0 and its exponent behind.
    row = torch.tensor([[1.0, -0.5, 0.0, 3.1415926]], dtype=torch.bfloat16)
    row = torch.cat([row, torch.full((1, 12), 0.75, dtype=torch.bfloat16)], 1)
    packed, (size,) = encode(row, [1], "bf16")
    known = packed.view(-1).tolist()
    assert known[0] == 122
    assert known[1:5] == [0x00, 0x80, 0x00, 0x49]
    codes = sum(byte << (8 * place) for place, byte in enumerate(known[17:20]))
    assert [(codes >> (3 * place)) & 7 for place in range(4)] == [6, 5, 0, 7]
    assert known[size - 1 :] == [0]
