"""Streams that share a resource: while the network is busy compute runs slower, and the reverse.

Event-driven: between two events every running task progresses at a constant rate. Only used where a cluster says what
sharing costs (`sharing` in a cluster file, measured), because the longest path of `simulator.py` is exact otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from orch.plan import COMPUTE, Plan
from orch.plan.timeline import Timeline, Times

if TYPE_CHECKING:
    from orch.cluster import Sharing


class _Stream:
    """One stream: the tasks it still has to run, in order, and how much of the first is left."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.queue: list[tuple[int, int]] = []
        self.next = 0
        self.left = math.nan
        self.running = False

    @property
    def head(self) -> tuple[int, int] | None:
        return self.queue[self.next] if self.next < len(self.queue) else None


def share(plan: Plan, durations: Sequence[Sequence[float]], sharing: Sharing, iterations: int) -> Timeline:
    """Return the timeline of `iterations` steps in which running streams slow one another as `sharing` says.

    `durations[step][task]` are the seconds each task takes alone. All ranks are taken to be alike: what sharing costs
    was measured on all of them together, slow ones and jitter included.
    """
    steps = [plan.steps[index % plan.period] for index in range(iterations)]
    names = [{task.name: position for position, task in enumerate(step)} for step in plan.steps]
    starts = [np.full(len(step), np.nan) for step in steps]
    ends = [np.full(len(step), np.nan) for step in steps]
    streams: dict[str, _Stream] = {}
    for index, step in enumerate(steps):
        for position, task in enumerate(step):
            if index or not task.lag:  # the first step has nothing of an earlier one to finish
                streams.setdefault(task.stream, _Stream(task.stream)).queue.append((index, position))

    def waits_for(index: int, name: str) -> bool:
        position = names[index % plan.period][name]
        skipped = not index and steps[index].tasks[position].lag
        return not skipped and math.isnan(ends[index][position])

    def may_start(index: int, position: int) -> bool:
        task = steps[index].tasks[position]
        if any(waits_for(index, name) for name in task.after):
            return False
        return index == 0 or not any(waits_for(index - 1, name) for name in task.after_previous)

    now = 0.0
    while any(stream.head is not None for stream in streams.values()):
        for stream in streams.values():
            if not stream.running and stream.head is not None and may_start(*stream.head):
                index, position = stream.head
                stream.running, stream.left = True, durations[index % plan.period][position]
                starts[index][position] = now
        rates = _rates([stream.name for stream in streams.values() if stream.running], sharing)
        running = [stream for stream in streams.values() if stream.running]
        elapsed = min(stream.left / rates[stream.name] for stream in running)
        now += elapsed
        for stream in running:
            stream.left -= elapsed * rates[stream.name]
            # A remainder below rounding is an end: two tasks that end together must not be split by 1e-18 s.
            if stream.left <= 1e-12 * max(1.0, now):
                head = stream.head
                assert head is not None
                ends[head[0]][head[1]] = now
                stream.running, stream.next = False, stream.next + 1
    return Timeline(plan, tuple(starts), tuple(ends), np.array(_boundaries(plan, steps, ends)), "simulated")


def _rates(running: Sequence[str], sharing: Sharing) -> dict[str, float]:
    """Return the rate of each running stream, 1 when it has the machine to itself."""
    network = any(name.startswith("net.") for name in running)
    computing = COMPUTE in running
    rates = dict.fromkeys(running, 1.0)
    for name in running:
        if name == COMPUTE and network:
            rates[name] = 1.0 / sharing.compute_slowdown
        elif name.startswith("net.") and computing:
            rates[name] = 1.0 / sharing.communication_slowdown
    return rates


def _boundaries(plan: Plan, steps: Sequence[object], ends: Sequence[Times]) -> list[float]:
    result: list[float] = []
    for index in range(len(steps)):
        step = plan.steps[index % plan.period]
        own = [ends[index][position] for position, task in enumerate(step) if task.stream == COMPUTE]
        before = result[-1] if result else 0.0
        result.append(max((end for end in own if not math.isnan(end)), default=before))
    return result
