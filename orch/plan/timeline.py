"""When every task ran: what the simulator computes and the runtime records, in one form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orch.plan.plan import COMPUTE, Plan, Task

Times = NDArray[np.float64]


class Span(NamedTuple):
    """One run of one task, in seconds on the timeline's clock."""

    task: Task
    iteration: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """Start and end of every task over consecutive iterations, as one rank saw them.

    `starts[i]` and `ends[i]` are arrays [tasks of step i % period] in seconds, NaN where a task did not run (the
    first iteration has nothing of a previous one to finish); `boundaries` [iterations] is when each iteration's own
    work ended, over all ranks. `began_s` is the moment of 0 on the clock of who recorded it.
    """

    plan: Plan
    starts: tuple[Times, ...]
    ends: tuple[Times, ...]
    boundaries: Times
    mode: Literal["simulated", "emulated", "measured"]
    began_s: float = 0.0

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def step_time_s(self) -> float:
        """Distance of steps in steady state: over the last whole period that has a period before it."""
        period = self.plan.period
        if len(self.boundaries) <= period:
            raise ValueError(f"{len(self.boundaries)} iterations say nothing about steady state; a period has {period}")
        return float(self.boundaries[-1] - self.boundaries[-1 - period]) / period

    def spans(self, iteration: int | None = None) -> Iterator[Span]:
        """Yield the tasks that ran, of one iteration or of all, in list order."""
        for index in range(len(self)) if iteration is None else (iteration % len(self),):
            step = self.plan.steps[index % self.plan.period]
            for task, start, end in zip(step, self.starts[index], self.ends[index], strict=True):
                if not np.isnan(end):
                    yield Span(task, index, float(start), float(end))

    def busy_s(self, stream: str = COMPUTE) -> float:
        """Seconds a step that `stream` spends in tasks, averaged over the last period."""
        period = self.plan.period
        chosen = range(max(0, len(self) - period), len(self))
        spans = [span for index in chosen for span in self.spans(index) if span.task.stream == stream]
        return sum(span.end_s - span.start_s for span in spans) / len(chosen)
