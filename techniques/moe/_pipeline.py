"""What a cut crossing takes: chunks on streams that take one task at a time, and PipeMoE's closed form of it.

Times in seconds. Stages are cut into `degree` chunks; each stream works its stages off one after another, all chunks of a
stage before any of the next, as `orch.plan.recut` lays them out, or in an order that a schedule of its own lays out.
"""

from __future__ import annotations

from collections.abc import Sequence

from orch.plan import Crossing, Plan, Task
from orch.technique import Context

# What runs in which order: stage and chunk, by number.
Order = Sequence[tuple[int, int]]


def breadth_first(stages: int, chunks: int) -> list[tuple[int, int]]:
    """Return all chunks of a stage before any of the next."""
    return [(stage, chunk) for stage in range(stages) for chunk in range(chunks)]


def makespan(
    stages: Sequence[Sequence[float]],
    streams: Sequence[str],
    before: Sequence[Sequence[int]] | None = None,
    order: Order | None = None,
) -> float:
    """Return when the last chunk has left; `stages[s][c]` are seconds, `streams[s]` who takes them, in `order`.

    A chunk's stage waits for the same chunk in the stages `before[s]`, by default in the one before it.
    """
    if before is None:
        before = [(), *((stage,) for stage in range(len(stages) - 1))]
    free = dict.fromkeys(streams, 0.0)
    ends: dict[tuple[int, int], float] = {}
    for stage, chunk in breadth_first(len(stages), len(stages[0])) if order is None else order:
        start = free[streams[stage]]
        for other in before[stage]:
            start = max(start, ends[other, chunk])
        free[streams[stage]] = ends[stage, chunk] = start + stages[stage][chunk]
    return max(ends.values())


def closed_form(exchange_s: float, expert_s: float, degree: int) -> float:
    """Return T(r) = max(2 r t_d, 2 t_d + r t_e) for chunk times t_d (each exchange) and t_e (expert): dispatches, then
    combines on one stream, experts on another.

    The repository solves the cases of this maximum apart; together they are exact for every r (derived: pipemoe brief,
    section 4.1).
    """
    return max(2 * degree * exchange_s, 2 * exchange_s + degree * expert_s)


def seconds(plan: Plan, context: Context, task: Task) -> float:
    """Return what a task of the plan costs."""
    return float(task.op.cost_s(context.cluster, context.span(plan, task)))


def crossing_s(plan: Plan, context: Context, crossing: Crossing, degree: int) -> float:
    """Return the makespan of a crossing cut into `degree` chunks.

    By the closed form where rows are exchanged, computed and exchanged back in equal chunks; else by walking the chain.
    """
    stages = crossing.cut(degree)
    expert = crossing.stages.index(crossing.expert)
    if len(stages) == 3 and expert == 1 and crossing.positions % degree == 0:
        first, middle, last = (seconds(plan, context, chunks[0]) for chunks in stages)
        if first == last:
            return closed_form(first, middle, degree)
    times = [[seconds(plan, context, task) for task in chunks] for chunks in stages]
    return makespan(times, [task.stream for task in crossing.stages], crossing.before)


def best_degree(plan: Plan, context: Context, crossing: Crossing, most: int) -> int:
    """Return the degree up to `most` with the least makespan; the smallest on ties. Chunks differ by a position at most."""
    if len(crossing.stages) == 1:
        return 1
    degrees = range(1, min(crossing.positions, most) + 1)
    return min(degrees, key=lambda degree: (crossing_s(plan, context, crossing, degree), degree))
