"""The chain that decides how long a step takes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings

from orch import registry
from orch.experiment.critical import critical_path
from orch.simulate import simulate
from orch.testing.small import cluster, member, planned, profile
from orch.testing.strategies import plans

MODEL = profile([(1,), (2,)], backward_s=[1.0, 2.0], forward_s=[1.0, 1.0])


def names(alpha_s: float) -> list[str]:
    place = cluster(2, alpha_s=alpha_s)
    timeline = simulate(planned(MODEL, place, [member(registry.technique("wfbp"))]), place, iterations=4)
    begin = float(timeline.boundaries[-2])
    return sorted(name for iteration, name in critical_path(timeline, begin) if iteration == len(timeline) - 1)


def test_slow_sends_are_on_it_and_the_backward_pass_they_hide_is_not() -> None:
    assert names(3.0) == ["all_reduce.b0", "all_reduce.b1", "backward.l2", "forward.l1", "forward.l2", "update"]


def test_fast_sends_wait_for_the_backward_pass() -> None:
    found = names(0.5)
    assert {"backward.l1", "backward.l2", "all_reduce.b1"} <= set(found)
    assert "all_reduce.b0" not in found


@settings(max_examples=40, deadline=None)
@given(plans())
def test_the_chain_has_no_gap_and_fills_the_time(plan) -> None:
    timeline = simulate(plan, cluster(plan.world_size, 0.5, 0.25))
    spans = {(span.iteration, span.task.name): span for span in timeline.spans()}
    chain = sorted((spans[place].start_s, spans[place].end_s) for place in critical_path(timeline))
    for (_, end), (start, _) in pairwise(chain):
        assert abs(start - end) <= 1e-9 * max(1.0, end)
    if chain:
        assert chain[0][0] == 0.0


def test_the_chain_goes_on_over_a_wait_for_another_rank() -> None:
    place = replace(cluster(2, alpha_s=1.0), speed={1: 0.5})
    timeline = simulate(planned(MODEL, place, [member(registry.technique("wfbp"))]), place)
    found = critical_path(timeline)
    assert min(iteration for iteration, _ in found) == 0
    assert (0, "forward.l1") in found
