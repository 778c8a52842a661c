"""Evaluate a plan on costs: a longest path, linear in tasks, vectorised over ranks where ranks differ.

A task starts when the task before it on its stream has ended and all its predecessors have ended; a collective starts
when that holds on every rank of its group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orch.plan import Collective, Plan, Step
from orch.plan.plan import COMPUTE
from orch.plan.timeline import Timeline
from orch.simulate.fluid import share

if TYPE_CHECKING:
    from orch.cluster import Cluster


def simulate(plan: Plan, cluster: Cluster, *, iterations: int | None = None, seed: int = 0) -> Timeline:
    """Return the timeline of `iterations` consecutive steps (default: enough for steady state), as rank 0 sees it.

    Slow ranks (`cluster.speed`) and jitter (one factor a rank and iteration, from `seed`) stretch what runs on the
    device.
    """
    iterations = 2 + 2 * plan.period if iterations is None else iterations
    programs = tuple(_program(plan, index, cluster) for index in range(plan.period))
    if cluster.sharing is not None:
        return share(plan, [program.durations for program in programs], cluster.sharing, iterations)
    if _ranks_differ(plan, cluster):
        return _evaluate(plan, programs, iterations, _Ranks(plan, cluster, seed))
    return _evaluate(plan, programs, iterations, _Alike())


@dataclass(frozen=True)
class _Program:
    """A step with names resolved to numbers: per task its stream, seconds, and predecessors in this and the previous
    step.
    """

    step: Step
    streams: list[int]
    durations: list[float]
    after: list[list[int]]
    after_previous: list[list[int]]
    on_device: list[bool]


def _program(plan: Plan, index: int, cluster: Cluster) -> _Program:
    step, previous = plan.steps[index], plan.steps[index - 1]
    names = {task.name: position for position, task in enumerate(step.tasks)}
    before = (
        {task.name: position for position, task in enumerate(previous.tasks)}
        if any(task.after_previous for task in step)
        else {}
    )
    numbers: dict[str, int] = {}
    spans = {name: cluster.span(group.blocks[0]) for name, group in plan.groups.items()}
    return _Program(
        step,
        [numbers.setdefault(task.stream, len(numbers)) for task in step.tasks],
        [task.op.cost_s(cluster, spans[task.group]) for task in step.tasks],
        [[names[name] for name in task.after] for task in step.tasks],
        [[before[name] for name in task.after_previous] for task in step.tasks],
        [task.op.on_device for task in step.tasks],
    )


def _ranks_differ(plan: Plan, cluster: Cluster) -> bool:
    same_work = all(len(ranks) == plan.world_size for ranks in plan.roles.values())
    return not same_work or bool(cluster.jitter) or cluster.uneven


class _Alike:
    """All ranks do the same at the same time, so one stands for all and times are plain floats."""

    maximum: Callable[[Any, Any], Any] = staticmethod(max)

    def begin(self, iteration: int) -> None:
        """Nothing varies."""

    def stretched(self, seconds: float) -> Any:
        return seconds

    def meet(self, start: Any, group: str) -> Any:
        return start

    def within(self, role: str, inside: Any, outside: Any) -> Any:
        return inside

    def seen(self, time: Any) -> float:
        return float(time)

    def latest(self, time: Any) -> float:
        return float(time)


class _Ranks:
    """Times are arrays [world_size] where ranks differ, floats where they met."""

    maximum: Callable[[Any, Any], Any] = staticmethod(np.maximum)

    def __init__(self, plan: Plan, cluster: Cluster, seed: int) -> None:
        self._world = plan.world_size
        self._slowness = 1.0 / np.asarray(cluster.speeds(), dtype=np.float64)
        self._jitter = cluster.jitter
        self._random = np.random.default_rng(seed)
        self._factor = self._slowness
        self._members = {
            name: np.isin(np.arange(self._world), ranks)
            for name, ranks in plan.roles.items()
            if len(ranks) != self._world
        }
        self._blocks = {name: [np.asarray(block) for block in group.blocks] for name, group in plan.groups.items()}

    def begin(self, iteration: int) -> None:
        """Draw how slow each rank is in this iteration: log-normal around its own speed."""
        if self._jitter:
            self._factor = self._slowness * np.exp(self._jitter * self._random.standard_normal(self._world))

    def stretched(self, seconds: float) -> Any:
        return seconds * self._factor

    def meet(self, start: Any, group: str) -> Any:
        if np.ndim(start) == 0:
            return start
        blocks = self._blocks[group]
        if len(blocks) == 1 and len(blocks[0]) == self._world:
            return float(start.max())
        result = start.copy()
        for block in blocks:
            result[block] = start[block].max()
        return result

    def within(self, role: str, inside: Any, outside: Any) -> Any:
        members = self._members.get(role)
        return inside if members is None else np.where(members, inside, outside)

    def seen(self, time: Any) -> float:
        return float(time if np.ndim(time) == 0 else time[0])

    def latest(self, time: Any) -> float:
        return float(np.max(time))


def _evaluate(plan: Plan, programs: Sequence[_Program], iterations: int, ranks: _Alike | _Ranks) -> Timeline:
    stream_ends: dict[str, Any] = {}
    previous: list[Any] = []
    starts, ends, boundaries = [], [], []
    for iteration in range(iterations):
        ranks.begin(iteration)
        program = programs[iteration % plan.period]
        begun, ended = _iteration(program, stream_ends, previous, ranks)
        starts.append(np.array([ranks.seen(time) for time in begun]))
        ends.append(np.array([ranks.seen(time) for time in ended]))
        boundaries.append(ranks.latest(stream_ends.get(COMPUTE, 0.0)))
        previous = ended
    return Timeline(plan, tuple(starts), tuple(ends), np.array(boundaries), "simulated")


def _iteration(
    program: _Program, stream_ends: dict[str, Any], previous: list[Any], ranks: _Alike | _Ranks
) -> tuple[list[Any], list[Any]]:
    """Run one step: append each task to its stream, move `stream_ends` on, and return when every task started and
    ended.
    """
    maximum, begun, ended = ranks.maximum, list[Any](), list[Any]()
    for position, task in enumerate(program.step.tasks):
        before = stream_ends.get(task.stream, 0.0)
        start = before
        for other in program.after[position]:
            start = maximum(start, ended[other])
        if previous:
            for other in program.after_previous[position]:
                start = maximum(start, previous[other])
        seconds: Any = program.durations[position]
        if program.on_device[position]:
            end = start + ranks.stretched(seconds)
        else:
            if isinstance(task.op, Collective):
                start = ranks.meet(start, task.group)
            end = start + seconds
        end = ranks.within(task.role, end, before)
        stream_ends[task.stream] = end
        begun.append(start)
        ended.append(end)
    return begun, ended
