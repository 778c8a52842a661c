"""The simulator against a naive one that knows nothing of its tricks: a clock, a rank at a time, an event at a time."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orch.plan import Collective, Compute, Plan, Task
from orch.simulate import simulate
from orch.testing.small import cluster
from orch.testing.strategies import plans


def naive(plan, where, iterations, factors):
    """Starts and ends {(rank, iteration, task): seconds} by the plan's one rule, moving a clock from event to event.

    `factors[iteration][rank]` stretches what runs on a device.
    """
    steps = [plan.steps[index % plan.period] for index in range(iterations)]
    queues = {}
    for index, step in enumerate(steps):
        for task in step:
            for rank in plan.roles[task.role]:
                if index or not task.lag:
                    queues.setdefault((rank, task.stream), []).append((index, task))
    planned = {(rank, index, task.name) for (rank, _), queue in queues.items() for index, task in queue}
    starts, ends, now = {}, {}, 0.0

    def ended(rank, index, name):
        key = (rank, index, name)
        return key not in planned or ends.get(key, np.inf) <= now

    def ready(rank, index, task):
        queue = queues[rank, task.stream]
        place = queue.index((index, task))
        before = place == 0 or ended(rank, queue[place - 1][0], queue[place - 1][1].name)
        own = all(ended(rank, index, name) for name in task.after)
        return before and own and (index == 0 or all(ended(rank, index - 1, name) for name in task.after_previous))

    while True:
        moved = True
        while moved:  # tasks of no length end at once and may let others start
            moved = False
            for (rank, _), queue in queues.items():
                for index, task in queue:
                    key = (rank, index, task.name)
                    if key in starts:
                        continue
                    group = plan.groups[task.group].block_of(rank) if isinstance(task.op, Collective) else (rank,)
                    if not all(ready(other, index, task) for other in group):
                        break
                    seconds = task.op.cost_s(where, where.span(plan.groups[task.group].blocks[0]))
                    seconds *= factors[index][rank] if task.op.on_device else 1.0
                    starts[key], ends[key], moved = now, now + seconds, True
        later = [end for end in ends.values() if end > now]
        if not later:
            break
        now = min(later)
    assert len(starts) == len(planned)
    return starts, ends


def check_against_naive(plan, where, iterations, factors):
    timeline = simulate(plan, where, iterations=iterations)
    starts, ends = naive(plan, where, iterations, factors)
    for index in range(iterations):
        for position, task in enumerate(plan.steps[index % plan.period]):
            expected = starts.get((0, index, task.name), np.nan), ends.get((0, index, task.name), np.nan)
            found = timeline.starts[index][position], timeline.ends[index][position]
            np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=f"{task.name} of iteration {index}")
        own = [
            ends[rank, past, task.name]
            for past in range(index + 1)
            for task in plan.steps[past % plan.period].stream("compute")
            for rank in range(plan.world_size)
            if (rank, past, task.name) in ends
        ]
        assert timeline.boundaries[index] == pytest.approx(max(own, default=0.0))


def whole_roles(plan):
    """The same plan with every rank in every role, which is what the path of plain floats handles."""
    return replace(plan, roles=dict.fromkeys(plan.roles, range(plan.world_size)))


@settings(max_examples=60, deadline=None)
@given(plans())
def test_equal_ranks(plan):
    check_against_naive(whole_roles(plan), cluster(4, alpha_s=2.0, beta_s_per_byte=0.25), 4, np.ones((4, 4)))


@settings(max_examples=60, deadline=None)
@given(plans())
def test_roles_and_groups_of_some_ranks(plan):
    where = cluster(4, alpha_s=2.0, beta_s_per_byte=0.25)
    check_against_naive(plan, replace(where, speed={3: 0.5}), 4, np.tile([1.0, 1.0, 1.0, 2.0], (4, 1)))


@settings(max_examples=40, deadline=None)
@given(plans(), st.floats(0.01, 0.5))
def test_jitter_is_a_factor_a_rank_and_iteration(plan, jitter):
    where = replace(cluster(4, alpha_s=2.0, beta_s_per_byte=0.25), jitter=jitter, speed={1: 0.8})
    random = np.random.default_rng(0)
    slowness = np.array([1.0, 1.25, 1.0, 1.0])
    factors = [slowness * np.exp(jitter * random.standard_normal(4)) for _ in range(4)]
    check_against_naive(plan, where, 4, factors)


def test_a_rank_waits_for_no_task_that_it_does_not_run():
    slow = Task("slow", Compute("m", 0.0, 0.0, seconds=5.0))
    few = Task("few", Compute("m", 0.0, 0.0, seconds=1.0), "copy.h2d", role="few")
    last = Task("last", Compute("m", 0.0, 0.0, seconds=1.0), "host", after=("few",))
    plan = replace(Plan.of("p", 2, [few, slow, last]), roles={"all": range(2), "few": range(1, 2)})
    timeline = simulate(plan, cluster(2), iterations=1)
    assert timeline.ends[0].tolist()[1:] == [5.0, 1.0]
    assert np.isnan(timeline.ends[0][0])


def test_seeds_repeat_and_differ():
    where = replace(cluster(2, alpha_s=1.0), jitter=0.1)
    plan = Plan.of("one", 2, [Task("a", Compute("m", 0.0, 0.0, seconds=1.0))])
    times = [simulate(plan, where, iterations=3, seed=seed).step_time_s for seed in (7, 7, 8)]
    assert times[0] == times[1] != times[2]


def test_a_lagging_task_does_not_run_in_the_first_iteration():
    tasks = [Task("late", Compute("m", 0.0, 0.0, seconds=5.0), lag=1), Task("own", Compute("m", 0.0, 0.0, seconds=1.0))]
    timeline = simulate(Plan.of("lag", 1, tasks), cluster(1), iterations=2)
    assert np.isnan(timeline.ends[0][0])
    assert timeline.boundaries.tolist() == [1.0, 7.0]


def test_steady_state_needs_a_period_before_it():
    plan = Plan.of("one", 1, [Task("a", Compute("m", 0.0, 0.0, seconds=1.0))])
    with pytest.raises(ValueError, match="say nothing about steady state"):
        _ = simulate(plan, cluster(1), iterations=1).step_time_s


def test_a_link_nobody_described_is_refused():
    from orch.cluster import Links
    from orch.errors import OrchError
    from orch.plan import AllReduce, Buffer, Segment

    task = Task("a", AllReduce(Buffer("a", (Segment("w", 1, "fp32", "w"),))), "net.inter")
    with pytest.raises(OrchError, match="not described"):
        simulate(Plan.of("one", 2, [task]), replace(cluster(2), links=Links()))
