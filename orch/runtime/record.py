"""What really ran: per step the tasks in the order in which they started, when, and the bytes handed to each
collective.

Stamps are taken where things happen (in the hooks, at the call of the process group, at its completion), by one
monotonic clock. A step costs a few lists of numbers; nothing is allocated per task beyond them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from orch.plan import COMPUTE, Plan
from orch.plan.timeline import Timeline
from orch.runtime.clock import Clock

NAN = math.nan


@dataclass(slots=True)
class StepRecord:
    """One step. Numbers index the tasks of its plan step.

    `order` lists tasks as they started; `starts` and `ends` [tasks] are seconds, NaN where a task did not run; `sent`
    and `ranks` say, per collective, the bytes handed over and the ranks that took part, `received` the bytes that came
    where that depends on the data, `rows` the bytes of the rows that left and came where these were packed in sizes that only
    the data know. `carried` tells whether the
    previous step left work to finish (lag 1); a `flush` holds only such work, done early. In an `exact` step the ends
    of collectives were stamped by the process group's own thread, which costs each of them a little; in others when
    somebody looked: at the next hook, or at the end of a wait. `read`: stamps are seconds.
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
    received: dict[int, int] = field(default_factory=dict)
    rows: dict[int, tuple[int, int]] = field(default_factory=dict)
    end: float = NAN
    exact: bool = False
    read: bool = False

    def of_rows(self) -> StepRecord:
        """Return the step with the bytes of rows themselves where they were packed in sizes that only the data know."""
        if not self.rows:
            return self
        sent, received = ({number: both[way] for number, both in self.rows.items()} for way in (0, 1))
        return replace(self, sent=self.sent | sent, received=self.received | received, rows={})


class Record:
    """The last `capacity` steps of one plan on one rank."""

    def __init__(self, plan: Plan, clock: Clock, capacity: int = 512) -> None:
        self.plan = plan
        self._clock = clock
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
        """Yield the kept steps, every stamp in seconds."""
        for step in self.steps:
            if not step.read:
                self._read(step)
            yield step

    def _read(self, step: StepRecord) -> None:
        seconds = self._clock.seconds
        step.starts[:] = [time if time is NAN else seconds(time) for time in step.starts]
        step.ends[:] = [time if time is NAN else seconds(time) for time in step.ends]
        step.begin, step.end = seconds(step.begin), seconds(step.end)
        step.read = not math.isnan(step.end)

    def clear(self) -> None:
        """Forget all steps."""
        self.steps.clear()

    def step_times_s(self) -> list[float]:
        """Return begin to end of every kept step, in seconds."""
        return [step.end - step.begin for step in self if not step.flush]

    def bytes_per_step(self) -> float:
        """Return the payload a step handed over, averaged over the kept steps (a flush counts with its step)."""
        steps = sum(not step.flush for step in self.steps)
        return sum(sum(step.sent.values()) for step in self.steps) / max(1, steps)

    def timeline(self, mode: Literal["emulated", "measured"] = "measured") -> Timeline:
        """Return the last steps as a timeline that starts at 0 and at a period's first step; flushed work is not in it.

        They are the exact steps where there are any. A collective starts when it was launched and the one before it on
        its stream had ended.
        """
        done = [step for step in self if not step.flush and not math.isnan(step.end)]
        steps = _whole_periods([step for step in done if step.exact] or done)
        zero = steps[0].begin if steps else 0.0
        starts, last = [], dict[str, float]()
        for step in steps:
            starts.append(np.array(_begun(self.plan, step, last)) - zero)
        ends = tuple(np.array(step.ends) - zero for step in steps)
        return Timeline(self.plan, tuple(starts), ends, np.array([step.end - zero for step in steps]), mode, zero)


def _begun(plan: Plan, step: StepRecord, last: dict[str, float]) -> list[float]:
    """Return when tasks began, in list order; `last` keeps the last end of each net stream from step to step."""
    starts = list(step.starts)
    for number, task in enumerate(plan.steps[step.place]):
        if task.stream != COMPUTE and not math.isnan(step.ends[number]):
            starts[number] = min(max(starts[number], last.get(task.stream, starts[number])), step.ends[number])
            last[task.stream] = step.ends[number]
    return starts


def _whole_periods(steps: Sequence[StepRecord]) -> Sequence[StepRecord]:
    first = next((index for index, step in enumerate(steps) if step.place == 0), len(steps))
    return steps[first:]
