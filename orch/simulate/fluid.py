"""Streams that share a resource: while the network is busy compute runs slower, and the reverse; a stream with lanes
works off several collectives at once.

Event-driven: between two events every running task progresses at a constant rate. Only used where a cluster says what
sharing costs (`sharing` in a cluster file, measured), because the longest path of `simulator.py` is exact otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from orch.plan import COMPUTE, Plan
from orch.plan.timeline import Timeline

if TYPE_CHECKING:
    from orch.cluster import Sharing


class Timed(NamedTuple):
    """Seconds of one collective: in a queue and one at a time, both alone and beside compute; and the seconds of compute
    that it takes away when it runs beside it.
    """

    queued: float
    single: float
    beside: float
    beside_single: float
    stolen: float

    def alone(self, number: int, computing: bool) -> float:
        """Return the seconds it takes as one of `number` under way all the time."""
        queued, single = (self.beside, self.beside_single) if computing else (self.queued, self.single)
        return max(single, number * queued) if number > 1 else max(single, queued)


Cost = float | Timed
# Compute is never stopped altogether: what is stolen was measured beside compute that went on.
LEAST_RATE = 0.05


@dataclass(slots=True)
class _Running:
    """A task under way, and the share of it that is left."""

    index: int
    position: int
    group: str
    cost: Cost
    left: float = 1.0
    rate: float = 1.0


class _Stream:
    """One stream: the tasks it still has to run, in order, and those under way."""

    __slots__ = ("lanes", "name", "next", "queue", "running")

    def __init__(self, name: str, lanes: int) -> None:
        self.name = name
        self.lanes = lanes if name.startswith("net.") else 1
        self.queue: list[tuple[int, int]] = []
        self.next = 0
        self.running: list[_Running] = []


def share(plan: Plan, costs: Sequence[Sequence[Cost]], sharing: Sharing, iterations: int) -> Timeline:
    """Return the timeline of `iterations` steps in which running streams slow one another as measured.

    `costs[step][task]` are the seconds each task takes. All ranks are taken to be alike: what sharing costs was measured
    on all of them together, slow ones and jitter included. Of several network streams the one that steals most counts.
    """
    period = plan.period
    steps = [plan.steps[index % period] for index in range(iterations)]
    # Lists while they are filled one by one, which takes half as long as in arrays.
    starts = [[math.nan] * len(step) for step in steps]
    ends = [[math.nan] * len(step) for step in steps]
    may_start = gate(plan, ends)
    streams: dict[str, _Stream] = {}
    for index, step in enumerate(steps):
        for position, task in enumerate(step):
            if index or not task.lag:  # the first step has nothing of an earlier one to finish
                stream = streams.setdefault(task.stream, _Stream(task.stream, sharing.lanes))
                stream.queue.append((index, position))

    now = 0.0
    while True:
        for stream in streams.values():
            while stream.next < len(stream.queue) and len(stream.running) < stream.lanes:
                index, position = stream.queue[stream.next]
                task = steps[index].tasks[position]
                group = task.group
                # Rows of a mixture travel on one lane: chunk after chunk is the point of cutting them.
                alone = task.op.in_layer or group != stream.running[0].group if stream.running else False
                if alone or not may_start(index, position):
                    break
                cost = costs[index % period][position]
                starts[index][position] = now
                stream.running.append(_Running(index, position, group, cost))
                stream.next += 1
        running = [one for stream in streams.values() for one in stream.running]
        if not running:
            break
        _set_rates(streams.values())
        elapsed = min(one.left / one.rate for one in running)
        now += elapsed
        # A remainder below rounding is an end: two tasks that end together must not be split by 1e-18 s.
        rounding = 1e-12 * max(1.0, now)
        for one in running:
            one.left = 0.0 if one.rate == math.inf else one.left - elapsed * one.rate
            if one.left <= rounding * one.rate:
                ends[one.index][one.position] = now
                one.left = 0.0
        for stream in streams.values():
            stream.running = [one for one in stream.running if one.left > 0.0]
    boundaries = np.array(boundaries_of(plan, steps, ends))
    return Timeline(plan, tuple(map(np.array, starts)), tuple(map(np.array, ends)), boundaries, "simulated")


def gate(plan: Plan, ends: Sequence[Sequence[float]]) -> Callable[[int, int], bool]:
    """Return what tells whether all predecessors of task `position` of step `index` have ended."""
    period = plan.period
    names = [{task.name: position for position, task in enumerate(step)} for step in plan.steps]
    own = [[[here[name] for name in task.after] for task in step] for step, here in zip(plan.steps, names, strict=True)]
    earlier = [
        [[names[number - 1][name] for name in task.after_previous] for task in step]
        for number, step in enumerate(plan.steps)
    ]
    skipped = [bool(task.lag) for task in plan.steps[0]]  # in the first step of all

    def waits(index: int, positions: Sequence[int]) -> bool:
        ended = ends[index]  # not a number: it has not
        return any(ended[place] != ended[place] and (index or not skipped[place]) for place in positions)

    def may_start(index: int, position: int) -> bool:
        number = index % period
        if waits(index, own[number][position]):
            return False
        return index == 0 or not waits(index - 1, earlier[number][position])

    return may_start


def _set_rates(streams: Iterable[_Stream]) -> None:
    """Set the rate of every running task: the share of it that passes in a second."""
    computing: _Running | None = None
    sending: list[_Stream] = []
    for stream in streams:
        for task in stream.running:
            if not isinstance(task.cost, Timed):
                task.rate = 1.0 / task.cost if task.cost > 0.0 else math.inf
        if stream.name == COMPUTE and stream.running:
            computing = stream.running[0]
        elif stream.running and stream.name != COMPUTE:
            sending.append(stream)
    most = 0.0
    for stream in sending:
        stolen = 0.0
        for task in stream.running:
            if isinstance(task.cost, Timed):
                seconds = task.cost.alone(len(stream.running), computing is not None)
                task.rate = 1.0 / seconds if seconds > 0.0 else math.inf
                stolen += task.cost.stolen / seconds if seconds > 0.0 else 0.0
        most = max(most, stolen)
    if computing is not None:
        computing.rate *= max(LEAST_RATE, 1.0 - most)


def boundaries_of(plan: Plan, steps: Sequence[object], ends: Sequence[Sequence[float]]) -> list[float]:
    """Return when each iteration ends: its last task that computes."""
    result: list[float] = []
    for index in range(len(steps)):
        step = plan.steps[index % plan.period]
        own = [ends[index][position] for position, task in enumerate(step) if task.stream == COMPUTE]
        before = result[-1] if result else 0.0
        result.append(max((end for end in own if not math.isnan(end)), default=before))
    return result
