"""Timelines: what is read off them."""

import numpy as np
import pytest

from orch.plan import Compute, Plan, Step, Task
from orch.plan.timeline import Timeline

A, B = (Task(name, Compute(name, 0.0, 0.0, seconds=1.0)) for name in "ab")
LATE = Task("late", Compute("m", 0.0, 0.0, seconds=1.0), lag=1)


def timeline():
    plan = Plan.of("p", 1, [LATE, A])
    starts = tuple(np.array(times) for times in ([np.nan, 1.0], [3.0, 5.0], [7.0, 9.0]))
    ends = tuple(np.array(times) for times in ([np.nan, 3.0], [5.0, 6.0], [9.0, 11.0]))
    return Timeline(plan, starts, ends, np.array([3.0, 6.0, 11.0]), "simulated")


def test_step_time_is_the_distance_of_the_last_steps():
    assert timeline().step_time_s == 5.0
    assert len(timeline()) == 3


def test_what_did_not_run_has_no_span():
    assert [(span.task.name, span.iteration) for span in timeline().spans()] == [
        ("a", 0),
        ("late", 1),
        ("a", 1),
        ("late", 2),
        ("a", 2),
    ]
    assert [span.start_s for span in timeline().spans(-1)] == [7.0, 9.0]


def test_busy_is_averaged_over_the_last_period():
    assert timeline().busy_s() == 4.0
    two = Plan("p", 1, (Step((A,)), Step((B,))))
    starts = tuple(np.array([float(index)]) for index in range(4))
    ends = tuple(np.array([index + length]) for index, length in enumerate([1.0, 1.0, 0.2, 0.6]))
    assert Timeline(two, starts, ends, np.arange(4.0), "measured").busy_s() == pytest.approx(0.4)
