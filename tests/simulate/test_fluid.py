"""Streams that share: against the longest path where nothing is shared, and by hand where it is."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orch.cluster import Curve, Overhead, Sharing
from orch.plan import AllReduce, Buffer, Compute, Plan, Segment, Task
from orch.simulate import simulate
from orch.testing.small import cluster
from orch.testing.strategies import plans

WHERE = cluster(4, alpha_s=2.0, beta_s_per_byte=0.25)


def whole(plan):
    return replace(plan, roles=dict.fromkeys(plan.roles, range(plan.world_size)))


@settings(max_examples=60, deadline=None)
@given(plans())
def test_without_slowdown_it_is_the_longest_path(plan):
    plan = whole(plan)
    path, fluid = simulate(plan, WHERE), simulate(plan, replace(WHERE, sharing=Sharing(1.0, 1.0)))
    for expected, found in zip((*path.starts, *path.ends), (*fluid.starts, *fluid.ends), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(fluid.boundaries, path.boundaries, rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(plans(), st.floats(1.0, 3.0), st.floats(1.0, 3.0))
def test_sharing_only_stretches_and_within_bounds(plan, compute, communication):
    plan = whole(plan)
    shared = simulate(plan, replace(WHERE, sharing=Sharing(compute, communication)))
    alone = simulate(plan, WHERE)
    for step, starts, ends in zip(range(len(alone)), shared.starts, shared.ends, strict=True):
        for position, task in enumerate(plan.steps[step % plan.period]):
            seconds = alone.ends[step][position] - alone.starts[step][position]
            slowest = {"compute": compute, "copy.h2d": 1.0}.get(task.stream, communication)
            took = ends[position] - starts[position]
            assert np.isnan(took) or seconds - 1e-6 <= took <= seconds * slowest + 1e-6


def test_overlap_by_hand():
    # Compute of 4 beside a send of 3 (at half speed while computing), compute at 1/1.5 while sending.
    send = AllReduce(Buffer("b", (Segment("w", 1, "fp32", "w"),)))
    tasks = [Task("work", Compute("m", 0.0, 0.0, seconds=4.0)), Task("send", send, "net.inter")]
    where = replace(cluster(2, alpha_s=3.0), sharing=Sharing(1.5, 2.0))
    timeline = simulate(Plan.of("both", 2, tasks), where, iterations=1)
    # Both run until the compute is done at 6 (half of the send's 6 is 3: it is done then as well).
    assert timeline.ends[0].tolist() == pytest.approx([6.0, 6.0])
    where = replace(where, sharing=Sharing(1.5, 4.0))
    timeline = simulate(Plan.of("both", 2, tasks), where, iterations=1)
    # By 6 the send has done 1.5; the rest runs alone.
    assert timeline.ends[0].tolist() == pytest.approx([6.0, 7.5])


def test_the_slowest_rank_sets_the_pace_of_shared_cores():
    send = AllReduce(Buffer("b", (Segment("w", 1, "fp32", "w"),)))
    tasks = [Task("work", Compute("m", 0.0, 0.0, seconds=4.0)), Task("send", send, "net.inter", after=("work",))]
    plan, where = Plan.of("chain", 2, tasks), replace(cluster(2, alpha_s=3.0), sharing=Sharing(1.0, 1.0))
    even = simulate(plan, where, iterations=1)
    slow = simulate(plan, replace(where, speed={1: 0.5}), iterations=1)
    assert even.ends[0][0] == pytest.approx(4.0)
    assert slow.ends[0][0] == pytest.approx(2 * even.ends[0][0])
    assert slow.ends[0][1] - slow.ends[0][0] == pytest.approx(even.ends[0][1] - even.ends[0][0])


def sends(*nbytes: int, after: str = "") -> list[Task]:
    """Return sends of so many items of a byte each, all ready when task `after` has ended."""
    return [
        Task(f"send{number}", AllReduce(Buffer(f"b{number}", (Segment("w", size, "int8", f"w{number}"),))), "net.inter",
             (after,) if after else ())
        for number, size in enumerate(nbytes)
    ]  # fmt: skip


def timed(sharing: Sharing, **ways: float):
    """Return two ranks whose all-reduce takes 2 in a queue, and what `ways` say in others."""
    where = replace(cluster(2, alpha_s=2.0), sharing=sharing)
    (measured,) = where.links.intra.measured
    curves = tuple((way.replace("_", "-"), Curve(seconds)) for way, seconds in ways.items())
    return where.with_links(intra=replace(where.links.intra, measured=(replace(measured, ways=curves),)))


def test_lanes_hide_the_start_up_of_small_collectives():
    plan = Plan.of("queue", 2, sends(1, 1, 1))
    one = simulate(plan, timed(Sharing(), single=3.0), iterations=1)
    assert one.ends[0].tolist() == pytest.approx([3.0, 6.0, 9.0])  # each alone: nobody to queue behind
    two = simulate(plan, timed(Sharing(lanes=2), single=3.0), iterations=1)
    # Two at once take 4 (2 each); the third has run for none of it, then alone for 3.
    assert two.ends[0].tolist() == pytest.approx([4.0, 4.0, 7.0])


def test_compute_loses_what_a_collective_steals_however_long_it_takes():
    tasks = [Task("work", Compute("m", 0.0, 0.0, seconds=10.0)), *sends(1)]
    where = timed(Sharing(), single=2.0, beside=8.0, beside_single=8.0, stolen=1.0)
    timeline = simulate(Plan.of("both", 2, tasks), where, iterations=1)
    assert timeline.ends[0].tolist() == pytest.approx([11.0, 8.0])


def test_the_runtime_takes_its_own_time_of_compute():
    tasks = [Task("first", Compute("m", 0.0, 0.0, seconds=1.0)), Task("second", Compute("m", 0.0, 0.0, seconds=2.0)),
             *sends(1, 1, after="second")]  # fmt: skip
    where = replace(cluster(2, alpha_s=3.0), overhead=Overhead(0.25, 0.5))
    timeline = simulate(Plan.of("over", 2, tasks), where, iterations=1)
    assert timeline.ends[0].tolist() == pytest.approx([1.25, 4.25, 7.25, 10.25])
