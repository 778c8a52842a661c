"""Eight bits a number: the brief's example, the bound on errors, rows of one number, and no row at all."""

import pytest
import torch

from techniques.moe.int8_rows_kernels import decode, encode


def test_the_worked_example_truncates_as_the_repository_does() -> None:
    packed = encode(torch.tensor([[0.0, 1.0, 2.0, 4.0]]), down=True)
    assert packed[0, :4].tolist() == [0, 63, 127, 255]
    torch.testing.assert_close(decode(packed), torch.tensor([[0.0, 0.98824, 1.99216, 4.0]]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (64, 33), (5, 256)])
def test_no_number_is_further_off_than_its_share_of_the_range(shape: tuple[int, int], down: bool) -> None:
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 10
    packed = encode(rows, down=down)
    assert packed.shape == (shape[0], shape[1] + 8)
    size = rows.amax(1, keepdim=True) - rows.amin(1, keepdim=True)
    assert ((decode(packed) - rows).abs() <= size / (255 if down else 510) * 1.001 + 1e-6).all()


def test_rows_of_one_number_are_kept_and_none_stays_none() -> None:
    rows = torch.tensor([[3.5, 3.5, 3.5], [0.0, 0.0, 0.0]])
    assert torch.equal(decode(encode(rows)), rows)
    assert decode(encode(torch.empty(0, 6))).shape == (0, 6)


def test_what_is_no_number_stays_none() -> None:
    assert decode(encode(torch.tensor([[1.0, float("nan"), 2.0]]))).isnan().any()
