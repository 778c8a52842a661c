"""Clocks of ranks: pings find a clock that is off, within the error they state."""

from __future__ import annotations

import pytest

from orch.runtime import alignment
from orch.runtime.alignment import Offset
from orch.runtime.clock import clock_name
from tests.runtime.worlds import World, run

OFF_S = 1000.0


def measure(world: World, off: bool) -> Offset:
    with pytest.MonkeyPatch.context() as patch:
        if off and world.rank == 2:
            patch.setattr(alignment, "perf_counter", lambda: alignment_clock() + OFF_S)
        return alignment.offset(world._worker)


alignment_clock = alignment.perf_counter


def test_a_clock_that_is_off_is_found_within_the_stated_error() -> None:
    found = run(3, measure, True)
    assert (found[0].seconds, found[0].error_s) == (0.0, 0.0)
    for rank, true in ((1, 0.0), (2, -OFF_S)):
        assert abs(found[rank].seconds - true) <= found[rank].error_s < 1.0
    assert {one.clock for one in found} == {clock_name()}


def test_a_world_of_one_meets_nobody() -> None:
    (own,) = run(1, measure, False)
    assert (own.seconds, own.error_s) == (0.0, 0.0)
