"""Other ways for rows from rank to rank: where ranks that share experts out share nodes, and an exchange taken apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from orch.plan import COUNTS, WHOLE, AllToAll, Group, Plan, Rows, Step, Task
from orch.technique import Context

EXPERTS, NEIGHBOURS, INTRA = "experts", "neighbours", "net.intra"


def neighbours(plan: Plan, context: Context) -> Group | None:
    """Return the groups of ranks that share experts out and a node; None unless every node has equally many, more than one
    rank and not all.
    """
    if EXPERTS not in plan.groups:
        return None
    per_node = context.cluster.devices_per_node
    blocks: list[tuple[int, ...]] = []
    for block in plan.groups[EXPERTS].blocks:
        by_node: dict[int, list[int]] = {}
        for rank in block:
            by_node.setdefault(rank // per_node, []).append(rank)
        blocks += [tuple(ranks) for ranks in by_node.values()]
    sizes = {len(block) for block in blocks}
    if len(sizes) != 1 or not 1 < min(sizes) < plan.groups[EXPERTS].size:
        return None
    return Group(NEIGHBOURS, tuple(blocks))


Apart = Callable[[Task, AllToAll, int], Sequence[Task]]


def each_exchange(plan: Plan, context: Context, apart: Apart) -> Plan:
    """Return the plan with every exchange of rows replaced by the tasks that `apart(task, op, neighbours)` makes of it.

    What waited for the exchange waits for all of these. The plan itself where nodes offer no other way.
    """
    group = neighbours(plan, context)
    if group is None:
        return plan
    changed = plan.each_step(lambda step: _taken_apart(step, apart, group.size))
    return changed if changed is plan else replace(changed, groups={**plan.groups, NEIGHBOURS: group})


def _taken_apart(step: Step, apart: Apart, number: int) -> Step:
    changes: dict[str, Sequence[Task]] = {}
    for task in step:
        if isinstance(task.op, AllToAll) and task.op.leg == WHOLE and task.op.part != COUNTS:
            changes[task.name] = apart(task, task.op, number)
    return expanded(step, changes)


def expanded(step: Step, changes: Mapping[str, Sequence[Task]]) -> Step:
    """Return the step with each named task replaced; what waited for it waits for every one that took its place."""
    if not changes:
        return step
    ends = {name: tuple(task.name for task in tasks) for name, tasks in changes.items()}
    result: list[Task] = []
    for task in step:
        result += changes.get(task.name, (_waiting(task, ends),))
    return Step(tuple(result))


def _waiting(task: Task, ends: Mapping[str, tuple[str, ...]]) -> Task:
    if ends.keys().isdisjoint(task.after):
        return task
    return replace(task, after=tuple(new for name in task.after for new in ends.get(name, (name,))))


def with_numel(op: AllToAll, name: str, a_position: int, **changes: object) -> AllToAll:
    """Return `op` with `a_position` items at each position, under a name of its own."""
    (whole,) = op.buffer.segments
    buffer = Rows.buffer_of(name, a_position * op.positions, whole.dtype)
    return replace(op, buffer=buffer, **changes)  # type: ignore[arg-type]
