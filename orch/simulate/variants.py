"""Step times of one plan on many variants of a cluster at once: the same longest path, each time an array of variants.

The rule is that of `simulator.py`, and a test holds the two equal. Only the costs differ between variants; the plan,
and with it the order on every stream, is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orch.plan import Plan, Task
from orch.plan.plan import COMPUTE
from orch.simulate.fluid_variants import boundaries as fluid
from orch.simulate.simulator import Known, Program, Row, program_of

if TYPE_CHECKING:
    from orch.cluster import Cluster

Stretch = Callable[[Task], Any]


def obstacle(cluster: Cluster) -> str | None:
    """Return what of `cluster` only `simulate` can reckon with, None when its variants can be simulated together."""
    if cluster.jitter or cluster.uneven:
        return "the cluster's ranks differ, or jitter"
    if cluster.sharing is not None and cluster.sharing.units:
        return "the cluster's collectives hold multiprocessors of its devices"
    if cluster.sharing is not None and cluster.sharing.lanes > 1:
        return "the cluster's collectives have lanes"
    return None


def step_times(
    plan: Plan, cluster: Cluster, stretch: Stretch | None = None, known: Known | None = None
) -> NDArray[np.float64]:
    """Return the step time [variants] of `plan` in steady state, in seconds; [1] where no cost is an array.

    `cluster` may hold arrays (`Cluster.scaled`, links with arrays); `stretch(task)` multiplies what a task costs, for
    compute whose seconds were measured. `known` keeps what operations cost on this cluster for the next plan. Raises
    ValueError for a cluster of which `obstacle` names something.
    """
    _refuse(cluster)
    streams: dict[str, int] = {COMPUTE: 0}
    programs = [program_of(plan, index, cluster, streams, known) for index in range(plan.period)]
    if stretch is not None:
        programs = [
            _stretched(program, [stretch(task) for task in step])
            for program, step in zip(programs, plan.steps, strict=True)
        ]
    return _steady(programs, list(streams), cluster)


def step_times_of(plans: Sequence[Plan], cluster: Cluster) -> list[NDArray[np.float64]]:
    """Return the step times [variants] of several plans, as `step_times` does of each: plans of one step that differ only in
    what their tasks cost are simulated together.
    """
    _refuse(cluster)
    alike: dict[object, list[int]] = {}
    for number, plan in enumerate(plans):
        tasks = plan.steps[0].tasks
        shape = tuple([(task.stream, task.after, task.after_previous, task.lag, task.name) for task in tasks])
        alike.setdefault((plan.period == 1 and shape) or number, []).append(number)
    found: dict[int, NDArray[np.float64]] = {}
    for numbers in alike.values():
        if len(numbers) == 1:
            found[numbers[0]] = step_times(plans[numbers[0]], cluster, known={})
            continue
        streams: dict[str, int] = {COMPUTE: 0}
        known: Known = {}
        programs = [program_of(plans[number], 0, cluster, streams, known) for number in numbers]
        rows = [
            same[0]._replace(seconds=np.stack(np.broadcast_arrays(*(np.atleast_1d(row.seconds) for row in same))))
            for same in zip(*(program.rows for program in programs), strict=True)
        ]
        times = _steady([Program(rows, programs[0].awaited, programs[0].kept)], list(streams), cluster)
        found.update(zip(numbers, times, strict=True))
    return [found[number] for number in range(len(plans))]


def _refuse(cluster: Cluster) -> None:
    found = obstacle(cluster)
    if found is not None:
        raise ValueError(f"variants are simulated together on even ranks without lanes; {found}")


def _steady(programs: list[Program], streams: Sequence[str], cluster: Cluster) -> NDArray[np.float64]:
    """Return the step time in steady state of programs, one a step of the period."""
    shortened = [_shortened(program) for program in programs]
    maps = [places for _, places in shortened]
    nodes = [_linked(rows, maps[index - 1]) for index, (rows, _) in enumerate(shortened)]
    closed = all(_closed(rows) for rows in nodes)
    period = len(programs)
    iterations = period if closed else 2 + 2 * period
    sharing = cluster.sharing
    if sharing is None:
        boundaries = _run(nodes, len(streams), iterations)
    else:
        slowdowns = (sharing.compute_slowdown, sharing.communication_slowdown)
        boundaries = list(fluid(nodes, [name.startswith("net.") for name in streams], slowdowns, iterations))
    before = 0.0 if closed else boundaries[-1 - period]
    return np.atleast_1d(np.asarray(boundaries[-1] - before, dtype=np.float64)) / period


def _closed(rows: list[Row]) -> bool:
    """Whether steps do not overlap, so that the first is like any: the compute stream begins a step and ends it, each
    other stream begins after one of its tasks, and its last task waits for all of them.
    """
    first: dict[int, Row] = {}
    last: dict[int, int] = {}
    for place, row in enumerate(rows):
        first.setdefault(row.stream, row)
        last[row.stream] = place
    if any(row.lag or row.previous for row in rows) or rows[-1].stream != 0:
        return False
    others = [stream for stream in last if stream]
    begun = all(any(rows[place].stream == 0 for place in first[stream].after) for stream in others)
    return begun and set(rows[-1].after) >= {last[stream] for stream in others}


def _stretched(program: Program, factors: list[Any]) -> Program:
    rows = [
        Row(stream, seconds * factor, after, previous, lag)
        for (stream, seconds, after, previous, lag), factor in zip(program.rows, factors, strict=True)
    ]
    return Program(rows, program.awaited, program.kept)


def _shortened(program: Program) -> tuple[list[Row], dict[int, int]]:
    """Join neighbours on a stream where nobody elsewhere waits for the first, and the second for nobody elsewhere.

    Returns the rows left, their predecessors numbered anew within the step, and the new place of each old row.
    """
    rows: list[Row] = []
    places: dict[int, int] = {}
    last: dict[int, int] = {}  # the latest old place of each stream
    crossing = {
        place for row in program.rows for place in row.after if program.rows[place].stream != row.stream
    } | program.kept
    for old, row in enumerate(program.rows):
        before = last.get(row.stream)
        # On its own stream a row has waited for its predecessors already.
        after = tuple([places[place] for place in row.after if program.rows[place].stream != row.stream])
        if (
            before is not None
            and not after
            and not row.previous
            and before not in crossing
            and program.rows[before].lag == row.lag
        ):
            places[old] = places[before]
            joined = rows[places[old]]
            rows[places[old]] = joined._replace(seconds=joined.seconds + row.seconds)
        else:
            places[old] = len(rows)
            rows.append(Row(row.stream, row.seconds, after, row.previous, row.lag))
        last[row.stream] = old
    return rows, places


def _linked(rows: list[Row], before: dict[int, int]) -> list[Row]:
    """Return `rows` with their predecessors in the step before numbered as that step's rows are now."""
    return [
        row._replace(previous=tuple([before[place] for place in row.previous])) if row.previous else row for row in rows
    ]


def _run(programs: list[list[Row]], num_streams: int, iterations: int) -> list[Any]:
    """Return when the compute stream ends each iteration."""
    free: list[Any] = [0.0] * num_streams
    boundaries: list[Any] = []
    previous: list[Any] = []
    for iteration in range(iterations):
        ended: list[Any] = []
        for stream, seconds, after, behind, lag in programs[iteration % len(programs)]:
            if lag and not iteration:
                ended.append(0.0)  # nothing of an earlier step is left to finish
                continue
            start = free[stream]
            for other in after:
                start = np.maximum(start, ended[other])
            if behind and iteration:
                for other in behind:
                    start = np.maximum(start, previous[other])
            free[stream] = start + seconds
            ended.append(free[stream])
        boundaries.append(free[0])
        previous = ended
    return boundaries
