"""The specification that every plan meets, checked after every pass: a broken pass is caught where it broke."""

from __future__ import annotations

from orch.errors import OrchError, Position
from orch.plan.buffers import ITEM_SIZE, Buffer
from orch.plan.operations import Aggregate, AllReduce, Backward, Collective, ReduceScatter, Update
from orch.plan.plan import Plan, Step, Task


class PlanError(OrchError):
    """A pass made a plan that breaks the specification. The message names the task and the rule."""

    def __init__(self, message: str, *, code: str = "E500", where: Position | None = None, hint: str = "") -> None:
        super().__init__(message, code=code, where=where, hint=hint)


def check(plan: Plan, *, finished: bool = False) -> Plan:
    """Return `plan`, or raise PlanError naming the first task that breaks a rule.

    Rules: names are unique in a step; predecessors stand earlier in the list (so there is no cycle) and exist; roles
    and groups are known; a collective carries one dtype where it reduces, and no segment twice; every gradient is
    updated exactly once. `finished` adds: no payload is left without an exchange.
    """
    if not plan.steps:
        raise PlanError(f"plan {plan.name!r} has no steps")
    layouts: dict[str, Buffer] = {}
    for index, step in enumerate(plan.steps):
        _check_order(plan, step, plan.steps[index - 1])
        _check_gradients(plan, index)
        for task in step.tasks:
            if isinstance(task.op, Collective):
                _check_collective(task, finished)
                # The runtime makes one buffer a name, and a record is read by names: two layouts must not share one.
                buffer = task.op.buffer
                if layouts.setdefault(buffer.name, buffer) != buffer:
                    raise PlanError(f"task {task.name!r}: buffer {buffer.name!r} has two layouts")
    return plan


def _check_order(plan: Plan, step: Step, previous: Step) -> None:
    seen: set[str] = set()
    before: set[str] | None = None
    roles, groups = plan.roles, plan.groups
    for task in step.tasks:
        name = task.name
        if name in seen:
            raise PlanError(f"task {name!r} appears twice in one step")
        if not seen.issuperset(task.after):
            odd = next(other for other in task.after if other not in seen)
            raise PlanError(f"task {name!r} waits for {odd!r}, which does not stand before it in the step")
        if task.after_previous:
            before = {other.name for other in previous.tasks} if before is None else before
            for odd in task.after_previous:
                if odd not in before:
                    raise PlanError(f"task {name!r} waits for {odd!r} of the previous step, which has no such task")
        if task.role not in roles:
            raise PlanError(f"task {name!r} has role {task.role!r}; the plan knows {', '.join(roles)}")
        if task.group not in groups:
            raise PlanError(f"task {name!r} has group {task.group!r}; the plan knows {', '.join(groups)}")
        if task.lag not in (0, 1):
            raise PlanError(f"task {name!r} has lag {task.lag}; allowed are 0 and 1")
        seen.add(name)


def _check_collective(task: Task, finished: bool) -> None:
    op = task.op
    assert isinstance(op, Collective)
    segments = op.buffer.segments
    if not segments:
        raise PlanError(f"task {task.name!r} carries nothing")
    if len(segments) > 1 and len({segment.name for segment in segments}) != len(segments):
        raise PlanError(f"task {task.name!r} carries a segment twice")
    for segment in segments:
        if segment.dtype not in ITEM_SIZE:
            raise PlanError(f"task {task.name!r}: segment {segment.name!r} has unknown dtype {segment.dtype!r}")
    if isinstance(op, AllReduce | ReduceScatter):
        first = segments[0].dtype
        if any(segment.dtype != first for segment in segments):
            raise PlanError(f"task {task.name!r} reduces segments of different dtypes")
    if finished and isinstance(op, Aggregate):
        raise PlanError(f"task {task.name!r}: no exchange aggregates this payload")


def _check_gradients(plan: Plan, index: int) -> None:
    """Every gradient that appears is updated once: in its own step, or with lag 1 in the next one."""
    produced = [name for task in plan.steps[index].of(Backward) for name in task.op.tensors]
    updated = [name for task in plan.steps[index].of(Update) if task.lag == 0 for name in task.op.tensors]
    following = plan.steps[(index + 1) % plan.period]
    updated += [name for task in following.of(Update) if task.lag == 1 for name in task.op.tensors]
    if len(set(produced)) != len(produced):
        raise PlanError("a gradient is produced twice in one step")
    if sorted(produced) != sorted(updated):
        odd = sorted(set(produced) ^ set(updated)) or sorted(name for name in set(updated) if updated.count(name) > 1)
        raise PlanError(f"gradient {odd[0]!r} is not updated exactly once after its backward")
