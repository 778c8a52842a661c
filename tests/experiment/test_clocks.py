"""Timelines of several clocks on one: drift is taken as even, and what shares a clock is not touched."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orch.experiment.clocks import Clocks, one_clock
from orch.runtime.alignment import Offset
from orch.simulate import simulate
from orch.testing.small import cluster, profile
from orch.workload import data_parallel

HERE, THERE = "here", "there"
FIRST = [Offset(10.0, 0.0, 0.0, HERE), Offset(110.0, -100.0, 2e-4, THERE), Offset(10.0, 1e-4, 3e-4, HERE)]
LAST = [Offset(20.0, 0.0, 0.0, HERE), Offset(120.0, -100.5, 1e-4, THERE), Offset(20.0, -1e-4, 3e-4, HERE)]


@pytest.mark.parametrize(("at_s", "expected"), [(110.0, -100.0), (115.0, -100.25), (120.0, -100.5), (122.0, -100.6)])
def test_a_clock_drifts_evenly_between_two_moments(at_s: float, expected: float) -> None:
    assert Clocks(FIRST, LAST).offset_s(1, at_s) == pytest.approx(expected)


def test_ranks_of_one_clock_are_not_moved_by_what_pings_say() -> None:
    clocks = Clocks(FIRST, LAST)
    assert clocks.offset_s(2, 15.0) == 0.0
    assert clocks.error_s == 2e-4
    assert Clocks(FIRST[::2], LAST[::2]).error_s == 0.0


def test_a_clock_of_which_nothing_is_known_is_shared_with_none() -> None:
    unknown = [replace(one, clock="") for one in FIRST]
    assert Clocks(unknown, unknown).error_s == 3e-4
    assert Clocks(unknown, unknown).offset_s(2, 15.0) == 1e-4


def test_timelines_begin_when_they_did_on_the_clock_of_rank_0() -> None:
    model = profile([(1,)], backward_s=[1.0], forward_s=[1.0])
    timeline = replace(simulate(data_parallel(model, 2, 1), cluster(2)), began_s=115.0)
    first, second, third = Clocks(FIRST, LAST).aligned([replace(timeline, began_s=15.0), timeline, None])
    assert (first.began_s, second.began_s, third) == (15.0, 14.75, None)
    assert second.starts is timeline.starts


def test_ranks_of_one_clock_need_no_pings_and_others_do() -> None:
    shared = one_clock([{"clock": HERE}] * 3)
    assert Clocks(shared, shared).error_s == 0.0
    assert Clocks(shared, shared).offset_s(2, 15.0) == 0.0
    assert one_clock([{"clock": HERE}, {"clock": THERE}]) == []
    assert one_clock([{"clock": ""}, {"clock": ""}]) == []
