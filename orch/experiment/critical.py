"""The critical path: the chain of tasks without slack that decides how long a step takes."""

from __future__ import annotations

import math

from orch.plan import COMPUTE
from orch.plan.timeline import Timeline

Place = tuple[int, str]  # iteration and name of a task
_SLACK = 1e-9  # of the time so far: rounding


def critical_path(timeline: Timeline, begin_s: float = 0.0) -> frozenset[Place]:
    """Return the tasks, as (iteration, name), on the chain that ends with the last computation and goes back to `begin_s`.

    A task starts when the last of what it waits for has ended: the task before it on its stream, or a predecessor of
    this step or of the last one. Following whichever ended last gives the chain; where two ended at once, the one on its
    own stream. A gap in it is a wait for another rank.
    """
    chain = _Chain(timeline)
    place = chain.last
    found: list[Place] = []
    while place is not None:
        found.append(place)
        place = chain.binding(place) if chain.start_s(place) > begin_s else None
    return frozenset(found)


class _Chain:
    """What each task of a timeline waited for."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._numbers = [{task.name: number for number, task in enumerate(step)} for step in timeline.plan.steps]
        self._before: dict[Place, Place] = {}
        latest: dict[str, Place] = {}
        self.last: Place | None = None
        for span in timeline.spans():
            place = (span.iteration, span.task.name)
            if span.task.stream in latest:
                self._before[place] = latest[span.task.stream]
            latest[span.task.stream] = place
        self.last = latest.get(COMPUTE)

    def start_s(self, place: Place) -> float:
        return float(self._timeline.starts[place[0]][self._number(place)])

    def end_s(self, place: Place) -> float:
        return float(self._timeline.ends[place[0]][self._number(place)])

    def binding(self, place: Place) -> Place | None:
        """Return what ended last, of all that `place` waited for; None for what waited for nothing."""
        iteration = place[0]
        task = self._timeline.plan.steps[iteration % self._timeline.plan.period].tasks[self._number(place)]
        waited_for = [self._before[place]] if place in self._before else []
        waited_for += [(iteration, name) for name in task.after]
        waited_for += [(iteration - 1, name) for name in task.after_previous if iteration]
        ends = [(end, one) for one in waited_for if not math.isnan(end := self.end_s(one))]
        latest = max((end for end, _ in ends), default=0.0)
        return next((one for end, one in ends if end >= latest - _SLACK * max(1.0, latest)), None)

    def _number(self, place: Place) -> int:
        return self._numbers[place[0] % self._timeline.plan.period][place[1]]
