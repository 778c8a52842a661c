"""Experts in pieces: every row once, and what whole experts compute."""

import pytest
import torch

from orch.models.zoo.mixture import FeedForward, GatedFeedForward
from orch.runtime.pieces import backward, forward, shares

COUNTS = [5, 0, 1, 7]


@pytest.mark.parametrize("pieces", [1, 2, 3, 8])
def test_every_row_is_in_one_piece(pieces: int) -> None:
    found = list(shares(COUNTS, pieces))
    assert len(found) == pieces
    assert sorted(torch.cat([where for where, _ in found]).tolist()) == list(range(13))
    assert [sum(column) for column in zip(*(own for _, own in found), strict=True)] == COUNTS


@pytest.mark.parametrize("kind", [FeedForward, GatedFeedForward])
@pytest.mark.parametrize("pieces", [2, 8])
def test_pieces_compute_what_the_whole_does(kind, pieces: int) -> None:
    torch.manual_seed(0)
    experts = kind(4, 6, 12).double()
    rows, gradient = torch.randn(13, 6, dtype=torch.float64), torch.randn(13, 6, dtype=torch.float64)
    with torch.no_grad():
        outputs, saved = forward(experts, rows, COUNTS, 1)
        own, kept = forward(experts, rows, COUNTS, pieces)
    torch.testing.assert_close(own, outputs, rtol=1e-14, atol=1e-14)
    for one, two in zip(saved, kept, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-14, atol=1e-14)
    with torch.no_grad():
        of_rows, found = backward(experts, gradient, saved, COUNTS, 1)
        of_own, mine = backward(experts, gradient, kept, COUNTS, pieces)
    torch.testing.assert_close(of_own, of_rows, rtol=1e-13, atol=1e-14)
    for name, value in found.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-12, atol=1e-13)


def test_no_rows_are_no_rows() -> None:
    experts = FeedForward(2, 6, 12)
    with torch.no_grad():
        outputs, saved = forward(experts, torch.empty(0, 6), [0, 0], 4)
        of_rows, found = backward(experts, torch.empty(0, 6), saved, [0, 0], 4)
    assert outputs.shape == of_rows.shape == (0, 6)
    assert all(not value.any() for value in found.values())
