"""What really ran: per step the tasks in the order in which they started, when, and the bytes handed to each
collective.

Stamps are taken where things happen (in the hooks, at the call of the process group, at its completion), by one
monotonic clock. A step costs a few lists of numbers; nothing is allocated per task beyond them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from orch.plan import Plan
from orch.plan.timeline import Timeline

NAN = math.nan


@dataclass(slots=True)
class StepRecord:
    """One step. Numbers index the tasks of its plan step.

    `order` lists tasks as they started; `starts` and `ends` [tasks] are seconds, NaN where a task did not run; `sent`
    and `ranks` say, per collective, the bytes handed over and the ranks that took part. `carried` tells whether the
    previous step left work to finish (lag 1); a `flush` holds only such work, done early.
    """

    number: int
    place: int
    begin: float
    starts: list[float]
    ends: list[float]
    carried: bool
    flush: bool = False
    order: list[int] = field(default_factory=list)
    sent: dict[int, int] = field(default_factory=dict)
    ranks: dict[int, tuple[int, ...]] = field(default_factory=dict)
    end: float = NAN
    parts: list[tuple[str, float]] = field(default_factory=list)


class Record:
    """The last `capacity` steps of one plan on one rank."""

    def __init__(self, plan: Plan, capacity: int = 512) -> None:
        self.plan = plan
        self.steps: deque[StepRecord] = deque(maxlen=capacity)
        self._blank = [[NAN] * len(step) for step in plan.steps]

    def open(self, number: int, begin: float, *, carried: bool, flush: bool = False) -> StepRecord:
        """Start the record of step `number`, counted from 0."""
        place = number % self.plan.period
        blank = self._blank[place]
        step = StepRecord(number, place, begin, blank.copy(), blank.copy(), carried, flush)
        self.steps.append(step)
        return step

    def __iter__(self) -> Iterator[StepRecord]:
        return iter(self.steps)

    def step_times_s(self) -> list[float]:
        """Return begin to end of every kept step, in seconds."""
        return [step.end - step.begin for step in self.steps if not step.flush]

    def bytes_per_step(self) -> float:
        """Return the payload a step handed over, averaged over the kept steps (a flush counts with its step)."""
        steps = sum(not step.flush for step in self.steps)
        return sum(sum(step.sent.values()) for step in self.steps) / max(1, steps)

    def timeline(self, mode: Literal["emulated", "measured"] = "measured") -> Timeline:
        """Return the kept steps as a timeline that starts at 0 and at a period's first step; flushed work is not in it."""
        steps = _whole_periods([step for step in self.steps if not step.flush and not math.isnan(step.end)])
        zero = steps[0].begin if steps else 0.0
        starts = tuple(np.array(step.starts) - zero for step in steps)
        ends = tuple(np.array(step.ends) - zero for step in steps)
        return Timeline(self.plan, starts, ends, np.array([step.end - zero for step in steps]), mode)


def _whole_periods(steps: Sequence[StepRecord]) -> Sequence[StepRecord]:
    first = next((index for index, step in enumerate(steps) if step.place == 0), len(steps))
    return steps[first:]


def median_durations_s(steps: Iterable[StepRecord], plan: Plan) -> dict[str, float]:
    """Return, per task name, the median seconds it took over `steps` (and over the steps of a period that share the
    name).
    """
    found: dict[str, list[float]] = {}
    for step in steps:
        for task, start, end in zip(plan.steps[step.place], step.starts, step.ends, strict=True):
            if not math.isnan(end - start):
                found.setdefault(task.name, []).append(end - start)
    return {name: float(np.median(times)) for name, times in found.items()}
