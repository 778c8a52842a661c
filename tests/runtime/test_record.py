"""The record as a timeline: periods, serial net streams, what was carried and flushed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from orch.plan import NET, AllReduce, Backward, Buffer, Plan, Segment, Task
from orch.runtime.clock import HostClock
from orch.runtime.record import Record, StepRecord


def plan(period: int = 1) -> Plan:
    def send(name: str) -> Task:
        return Task(name, AllReduce(Buffer(name, (Segment(name, 2, "fp32", name),))), NET, after=("backward.m",))

    one = Plan.of("p", 2, [Task("backward.m", Backward("m", 0.0, 0.0, ready=("x", "y"))), send("x"), send("y")])
    return Plan("p", 2, one.steps * period, one.roles, one.groups)


def fill(record: Record, number: int, begin: float, *, exact: bool = False, flush: bool = False) -> StepRecord:
    step = record.open(number, begin, carried=flush, flush=flush)
    step.starts[:] = [begin, begin + 1.0, begin + 1.0]
    step.ends[:] = [begin + 1.0, begin + 3.0, begin + 4.0]
    step.sent.update({1: 8, 2: 8})
    step.end = begin + 4.0
    step.exact = exact
    return step


def test_a_collective_starts_when_the_one_before_it_ended() -> None:
    record = Record(plan(), HostClock())
    for number in range(3):
        fill(record, number, 100.0 + 4.0 * number)
    timeline = record.timeline()
    assert timeline.mode == "measured"
    assert timeline.starts[0].tolist() == [0.0, 1.0, 3.0]
    assert timeline.ends[0].tolist() == [1.0, 3.0, 4.0]
    assert timeline.step_time_s == pytest.approx(4.0)


def test_exact_steps_come_first() -> None:
    record = Record(plan(), HostClock())
    for number in range(6):
        fill(record, number, 4.0 * number, exact=number >= 4)
    assert len(record.timeline()) == 2


def test_a_timeline_begins_with_a_period() -> None:
    record = Record(plan(period=2), HostClock())
    for number in range(1, 6):
        fill(record, number, 4.0 * number)
    timeline = record.timeline()
    assert len(timeline) == 4
    assert float(timeline.starts[0][0]) == 0.0
    assert list(np.diff(timeline.boundaries)) == [4.0, 4.0, 4.0]


def test_a_flush_is_no_step_but_its_bytes_count() -> None:
    record = Record(plan(), HostClock())
    fill(record, 0, 0.0)
    fill(record, 1, 4.0, flush=True)
    assert len(record.timeline()) == 1
    assert record.bytes_per_step() == 32.0
    assert record.step_times_s() == [4.0]


def test_capacity_and_clear() -> None:
    record = Record(plan(), HostClock(), capacity=2)
    for number in range(5):
        fill(record, number, float(number))
    assert [step.number for step in record] == [3, 4]
    record.clear()
    assert list(record) == []
    assert record.bytes_per_step() == 0.0


def test_stamps_are_read_once_by_the_clock() -> None:
    class Doubling(HostClock):
        def seconds(self, stamp: float) -> float:
            return 2.0 * stamp

    record = Record(plan(), Doubling())
    fill(record, 0, 1.0)
    assert [step.starts[0] for step in record] == [2.0]
    assert [step.starts[0] for step in record] == [2.0]
    unfinished = record.open(1, 9.0, carried=False)
    assert math.isnan(unfinished.end)
