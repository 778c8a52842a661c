"""Sizes of packed parts in one step: what is told to whom, and the bytes of the rows themselves beside those that travel."""

from __future__ import annotations

import pytest
import torch

from orch.plan import FAR, NEAR, WHOLE, AllToAll, Chunk, Rows, RowSizes
from orch.runtime.legs import Legs, Tallies
from orch.runtime.packed import Sizes

RANKS, NODE = 4, 2
ALL = Chunk(0, 1)


def told(part: str, written: list[int], came: list[int]) -> Sizes:
    sizes = Sizes()
    sizes.packed((part, ALL), written)
    parcel = sizes.parcel(RowSizes(Rows.buffer_of("sizes", RANKS, "int64"), "moe", f"sizes_{part}"))
    assert parcel.sent.tolist() == written
    parcel.received.copy_(torch.tensor(came))
    return sizes


@pytest.mark.parametrize("part", ["dispatch", "combine"])
@pytest.mark.parametrize(("leg", "ranks"), [(WHOLE, [0, 1, 2, 3]), (NEAR, [2, 3]), (FAR, [0, 1])])
def test_bytes_travel_by_the_sizes_that_were_told(part: str, leg: str, ranks: list[int]) -> None:
    written, came = [3, 0, 5, 7], [2, 4, 0, 1]
    sizes, legs = told(part, written, came), Legs(2, RANKS)
    legs.leave((part, ALL), torch.arange(sum(written), dtype=torch.uint8).unsqueeze(1))
    tallies = Tallies([1, 0, 2, 2], [1, 1, 0, 1], lambda: [])
    op = AllToAll(Rows.buffer_of("x", 0, "fp32"), "moe", part, leg=leg, neighbours=NODE)
    parcel = sizes.sized(op, legs, lambda: torch.empty(0), tallies, row_bytes=4)
    assert parcel.sent.nbytes == sum(written[rank] for rank in ranks)
    assert parcel.received.nbytes == sum(came[rank] for rank in ranks)
    # On the way back rows leave to those from whom they came.
    out, back = [4 * sum(counts[rank] for rank in ranks) for counts in (tallies.mine, tallies.theirs)]
    assert parcel.rows == ((out, back) if part == "dispatch" else (back, out))


def test_rows_that_never_leave_are_as_large_as_they_were_written() -> None:
    sizes = Sizes()
    sizes.packed(("dispatch", ALL), [9])
    assert (("dispatch", ALL) in sizes, sizes.came(("dispatch", ALL))) == (True, [9])
    sizes.packed(("combine", ALL), None)
    assert (("combine", ALL) in sizes, sizes.came(("combine", ALL))) == (False, None)
