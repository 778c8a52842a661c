"""Evaluate a plan on costs: a longest path, linear in tasks, vectorised over ranks where ranks differ.

A task starts when the task before it on its stream has ended and all its predecessors have ended; a collective starts
when that holds on every rank of its group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from orch.cluster.sharing import WAYS
from orch.plan import Collective, Operation, Plan, Step, Task
from orch.plan.alike import alike
from orch.plan.operations import seconds_of
from orch.plan.plan import COMPUTE
from orch.plan.timeline import Timeline
from orch.simulate.contended import Contended
from orch.simulate.fluid import Cost, Timed, share

if TYPE_CHECKING:
    from orch.cluster import Cluster, Overhead, Span


def simulate(plan: Plan, cluster: Cluster, *, iterations: int | None = None, seed: int = 0) -> Timeline:
    """Return the timeline of `iterations` consecutive steps (default: enough for steady state), as rank 0 sees it.

    Slow ranks (`cluster.speed`) and jitter (one factor a rank and iteration, from `seed`) stretch what runs on the
    device.
    """
    iterations = 2 + 2 * plan.period if iterations is None else iterations
    streams: dict[str, int] = {COMPUTE: 0}
    programs = tuple(program_of(plan, index, cluster, streams) for index in range(plan.period))
    if not _same_work(plan):
        # One lane that stands for all ranks cannot say what ranks with work of their own do to one another.
        return _Ranks(plan, cluster, seed).run(programs, len(streams), iterations)
    if cluster.sharing is not None and cluster.sharing.units:
        costs = [[row.seconds for row in program.rows] for program in programs]
        return Contended(plan, costs, cluster.sharing, iterations).run()
    if cluster.sharing is not None:
        return share(plan, _timed(plan, programs, cluster), cluster.sharing, iterations)
    if cluster.jitter or cluster.uneven:
        return _Ranks(plan, cluster, seed).run(programs, len(streams), iterations)
    return _alike(plan, programs, len(streams), iterations)


def makespan_s(plan: Plan, cluster: Cluster) -> float:
    """Return the seconds from the first start of one step to its last end."""
    timeline = simulate(plan, cluster, iterations=1)
    return float(np.nanmax(timeline.ends[0]) - np.nanmin(timeline.starts[0]))


# What operations cost: of those alike, and of others by identity, with the operation itself, so that its id stays its own.
Known: TypeAlias = dict[object, tuple[Operation, Any]]


class Row(NamedTuple):
    """A task with names resolved to numbers: its stream, seconds alone, and predecessors in this and the last step."""

    stream: int
    seconds: float
    after: tuple[int, ...]
    previous: tuple[int, ...]
    lag: int


@dataclass(frozen=True)
class Program:
    """A step as rows, and the rows whose ends somebody waits for: in this step or in the next one."""

    rows: list[Row]
    awaited: set[int]
    kept: set[int]


def program_of(
    plan: Plan, index: int, cluster: Cluster, streams: dict[str, int], known: Known | None = None
) -> Program:
    """Return step `index` of a plan as rows; new streams get the next numbers in `streams`. What operations cost is looked up in
    `known`, and kept there: plans that share them are then simulated on one cluster.
    """
    step, previous, following = plan.steps[index], plan.steps[index - 1], plan.steps[(index + 1) % plan.period]
    names = {task.name: position for position, task in enumerate(step.tasks)}
    before = {task.name: position for position, task in enumerate(previous.tasks)} if _looks_back(step) else {}
    spans = {name: cluster.span(group.blocks[0]) for name, group in plan.groups.items()}
    # Where compute and communication share cores there is one lane for all ranks: that of the slowest, whom all await.
    slow = 1.0 / min(cluster.speeds()) if cluster.sharing is not None and cluster.uneven and _same_work(plan) else 1.0
    none: tuple[int, ...] = ()
    rows = [
        Row(
            streams.setdefault(task.stream, len(streams)),
            _seconds(task, cluster, spans, known) * (slow if task.op.on_device else 1.0),
            tuple([names[name] for name in task.after]) if task.after else none,
            tuple([before[name] for name in task.after_previous]) if task.after_previous else none,
            task.lag,
        )
        for task in step.tasks
    ]
    if cluster.overhead is not None:
        _add_overhead(step, rows, cluster.overhead)
    awaited = {other for row in rows for other in row.after}
    kept = {names[name] for task in following.tasks for name in task.after_previous}
    return Program(rows, awaited | kept, kept)


def _seconds(task: Task, cluster: Cluster, spans: Mapping[str, Span], known: Known | None) -> Any:
    if known is None:
        return _asked(task, cluster, spans)
    facts = alike(task.op)
    key = id(task.op) if facts is None else (facts, task.group)
    kept = known.get(key)
    if kept is None or (facts is None and kept[0] is not task.op):
        kept = known[key] = task.op, _asked(task, cluster, spans)
    return kept[1]


def _asked(task: Task, cluster: Cluster, spans: Mapping[str, Span]) -> Any:
    span = spans[task.group]
    return seconds_of(task.op, cluster, span) if cluster.operations else task.op.cost_s(cluster, span)


def _add_overhead(step: Step, rows: list[Row], overhead: Overhead) -> None:
    """Lay the runtime's own seconds on the compute stream: each collective's on the task whose end launches it."""
    computes = [place for place, task in enumerate(step) if task.stream == COMPUTE and not task.lag]
    if not computes:
        return
    more = dict.fromkeys(computes, 0.0)
    more[computes[0]] = overhead.step_s
    for task, row in zip(step, rows, strict=True):
        if isinstance(task.op, Collective):
            more[max((place for place in row.after if place in more), default=computes[0])] += overhead.collective_s
    for place, seconds in more.items():
        rows[place] = rows[place]._replace(seconds=rows[place].seconds + seconds)


def _timed(plan: Plan, programs: Sequence[Program], cluster: Cluster) -> list[list[Cost]]:
    """Return the cost of every task; of collectives in every way they were timed."""
    spans = {name: cluster.span(group.blocks[0]) for name, group in plan.groups.items()}
    ways = [cluster.in_way(way) for way in WAYS]
    costs: list[list[Cost]] = []
    for step, program in zip(plan.steps, programs, strict=True):
        costs.append(
            [
                Timed(row.seconds, *(task.op.cost_s(way, spans[task.group]) for way in ways))
                if isinstance(task.op, Collective)
                else row.seconds
                for task, row in zip(step, program.rows, strict=True)
            ]
        )
    return costs


def _same_work(plan: Plan) -> bool:
    return all(len(ranks) == plan.world_size for ranks in plan.roles.values())


def _looks_back(step: Any) -> bool:
    return any(task.after_previous for task in step.tasks)


def _alike(plan: Plan, programs: Sequence[Program], num_streams: int, iterations: int) -> Timeline:
    """All ranks do the same at the same time, so one stands for all and times are plain floats."""
    free = [0.0] * num_streams
    starts: list[list[float]] = []
    ends: list[list[float]] = []
    boundaries: list[float] = []
    previous: list[float] = []
    for iteration in range(iterations):
        begun: list[float] = []
        ended: list[float] = []
        for stream, seconds, after, behind, lag in programs[iteration % plan.period].rows:
            if lag and not iteration:
                # Nothing of an earlier step is left to finish; NaN never wins a comparison, so nobody waits for it.
                begun.append(math.nan)
                ended.append(math.nan)
                continue
            start = free[stream]
            for other in after:
                if ended[other] > start:
                    start = ended[other]
            if behind and iteration:
                for other in behind:
                    if previous[other] > start:
                        start = previous[other]
            end = start + seconds
            free[stream] = end
            begun.append(start)
            ended.append(end)
        starts.append(begun)
        ends.append(ended)
        boundaries.append(free[0])
        previous = ended
    return _timeline(plan, starts, ends, boundaries)


class _Ranks:
    """Times are arrays [world_size] where ranks differ, floats where they met."""

    def __init__(self, plan: Plan, cluster: Cluster, seed: int) -> None:
        self._plan = plan
        self._world = plan.world_size
        self._slowness = 1.0 / np.asarray(cluster.speeds(), dtype=np.float64)
        self._jitter = cluster.jitter
        self._random = np.random.default_rng(seed)
        self._members = {
            name: np.isin(np.arange(self._world), ranks)
            for name, ranks in plan.roles.items()
            if len(ranks) != self._world
        }
        self._blocks = {name: [np.asarray(block) for block in group.blocks] for name, group in plan.groups.items()}

    def run(self, programs: Sequence[Program], num_streams: int, iterations: int) -> Timeline:
        """Return the timeline of rank 0; boundaries are those of the slowest rank."""
        free: list[Any] = [0.0] * num_streams
        starts: list[list[float]] = []
        ends: list[list[float]] = []
        boundaries: list[float] = []
        previous: dict[int, Any] = {}
        for iteration in range(iterations):
            program = programs[iteration % self._plan.period]
            begun, ended, awaited = self._step(iteration, program, free, previous)
            starts.append(begun)
            ends.append(ended)
            boundaries.append(float(np.max(free[0])))
            previous = {place: awaited[place] for place in program.kept if place in awaited}
        return _timeline(self._plan, starts, ends, boundaries)

    def _step(
        self, iteration: int, program: Program, free: list[Any], previous: dict[int, Any]
    ) -> tuple[list[float], list[float], dict[int, Any]]:
        """Run one step: move `free` on, and return rank 0's starts and ends, and on all ranks the ends that count.

        Only ends that some task waits for are kept: an array a task would be gigabytes at 65,536 ranks.
        """
        factor = self._drawn()
        begun: list[float] = []
        ended: list[float] = []
        awaited: dict[int, Any] = {}
        tasks = self._plan.steps[iteration % self._plan.period].tasks
        for place, (task, row) in enumerate(zip(tasks, program.rows, strict=True)):
            if row.lag and not iteration:
                begun.append(math.nan)
                ended.append(math.nan)
                continue
            before = start = free[row.stream]
            for other in row.after:
                if other in awaited:
                    start = np.maximum(start, awaited[other])
            for other in row.previous:
                if other in previous:
                    start = np.maximum(start, previous[other])
            if task.op.on_device:
                end = start + row.seconds * factor
            else:
                start = self._meet(start, task.group) if isinstance(task.op, Collective) else start
                end = start + row.seconds
            members = self._members.get(task.role)
            if place in program.awaited:
                # A rank that does not run the task has nothing to wait for.
                awaited[place] = end if members is None else np.where(members, end, 0.0)
            free[row.stream] = end if members is None else np.where(members, end, before)
            takes_part = members is None or bool(members[0])
            begun.append(_first(start) if takes_part else math.nan)
            ended.append(_first(end) if takes_part else math.nan)
        return begun, ended, awaited

    def _drawn(self) -> Any:
        """Return how slow each rank is in this iteration: log-normal around its own speed."""
        if not self._jitter:
            return self._slowness
        return self._slowness * np.exp(self._jitter * self._random.standard_normal(self._world))

    def _meet(self, start: Any, group: str) -> Any:
        if np.ndim(start) == 0:
            return start
        blocks = self._blocks[group]
        if len(blocks) == 1 and len(blocks[0]) == self._world:
            return float(start.max())
        result = start.copy()
        for block in blocks:
            result[block] = start[block].max()
        return result


def _first(time: Any) -> float:
    return float(time if np.ndim(time) == 0 else time[0])


def _timeline(plan: Plan, starts: list[list[float]], ends: list[list[float]], boundaries: list[float]) -> Timeline:
    begun, ended = (tuple([np.array(times) for times in lists]) for lists in (starts, ends))
    return Timeline(plan, begun, ended, np.array(boundaries), "simulated")
