"""Block floating point: the bound on errors at every scale, odd widths, and blocks that hold what is no number."""

import pytest
import torch

from techniques.moe.bfp8_rows_kernels import decode, encode


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 3e4, 1e30])
@pytest.mark.parametrize("shape", [(1, 1), (3, 15), (4, 16), (7, 17), (2, 64), (0, 5)])
def test_no_number_is_further_off_than_its_share_of_the_largest_of_its_block(
    shape: tuple[int, int], scale: float
) -> None:
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(2)) * scale
    packed = encode(rows, 16)
    assert packed.shape == (shape[0], shape[1] + -(-shape[1] // 16))
    found = decode(packed, shape[1], 16)
    for begin in range(0, shape[1], 16):
        block = rows[:, begin : begin + 16]
        if block.numel():
            largest = block.abs().amax(1, keepdim=True)
            assert ((found[:, begin : begin + 16] - block).abs() <= largest / 64 * 1.001).all()


def test_zeros_and_powers_of_two_are_exact() -> None:
    rows = torch.tensor([[0.0, 1.0, -0.5, 0.25, -1.0, 0.0]])
    assert torch.equal(decode(encode(rows, 16), 6, 16), rows)
    assert torch.equal(decode(encode(torch.zeros(2, 20), 16), 20, 16), torch.zeros(2, 20))


def test_only_the_block_with_what_is_no_number_is_lost() -> None:
    rows = torch.ones(1, 32)
    rows[0, 20] = float("inf")
    found = decode(encode(rows, 16), 32, 16)
    assert torch.equal(found[:, :16], rows[:, :16])
    assert found[:, 16:].isnan().all()
