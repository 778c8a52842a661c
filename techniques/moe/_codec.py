"""Codecs of rows: what stands before and behind each exchange of a mixture, and what then travels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from orch.plan import (
    COMPUTE,
    COUNTS,
    SIZES,
    AllToAll,
    Group,
    PackRows,
    Plan,
    Rows,
    RowSizes,
    Step,
    Task,
    UnpackRows,
)

PASSES = 3
"""Rows are read twice (for their range, then to be written in it) and written once."""


# Who shares experts out, and tells sizes to whom; the stream on which that is told.
EXPERTS, TOLD = "experts", "net.sizes"

Around = Callable[[Task, AllToAll], Sequence[Task]]


def coded(
    plan: Plan,
    pack: Callable[..., PackRows],
    unpack: Callable[..., UnpackRows],
    form: Callable[[int], tuple[int, str]],
    *,
    gradients: bool,
    passes: int = PASSES,
) -> Plan:
    """Return the plan with every exchange of rows between a packing and an unpacking.

    `form(hidden)` says how many items of which dtype a row of `hidden` numbers travels as; with `gradients` false those of
    backward travel as they are.
    """

    def around(task: Task, op: AllToAll) -> Sequence[Task]:
        (whole,) = op.buffer.segments
        items, dtype = form(op.width)
        packed = replace(op, buffer=Rows.buffer_of(task.name, whole.numel // op.width * items, dtype))
        moved = (1.0 * ((passes - 1) * whole.nbytes + packed.nbytes), 1.0 * (whole.nbytes + packed.nbytes))
        return _between(task, op, packed, pack, unpack, moved)

    return _each(plan, around, gradients)


def coded_apart(
    plan: Plan,
    pack: Callable[..., PackRows],
    unpack: Callable[..., UnpackRows],
    travels: Callable[[str], tuple[int, str]],
    *,
    gradients: bool,
    passes: tuple[int, int],
) -> Plan:
    """Return the plan with every exchange of rows between a packing and an unpacking of sizes that only the data know.

    `travels(dtype)` says how many bytes of a thousand are expected to travel, and what that rests on; `passes` over the rows
    are made in packing and in unpacking. Where nobody shares experts out there is nothing to pack.
    """

    def around(task: Task, op: AllToAll) -> Sequence[Task]:
        expected, rests_on = travels(op.buffer.segments[0].dtype)
        packed = replace(op, travels=expected, rests_on=rests_on)
        moved = (1.0 * passes[0] * op.nbytes, 1.0 * passes[1] * op.nbytes)
        first, sent, last = _between(task, op, packed, pack, unpack, moved)
        name, number = f"{SIZES}.{task.name}", plan.groups[EXPERTS].size
        facts = (f"{SIZES}_{op.part}", op.positions, op.begin, op.end)
        told = Task(
            name, RowSizes(Rows.buffer_of(name, number, "int64"), op.module, *facts), TOLD, (first.name,), group=SIZES
        )
        return [first, told, replace(sent, after=(first.name, name, *sent.after[1:])), last]

    new = _each(plan, around, gradients)
    if new is plan:
        return plan
    return replace(new, groups={**plan.groups, SIZES: Group(SIZES, plan.groups[EXPERTS].blocks)})


def _each(plan: Plan, around: Around, gradients: bool) -> Plan:
    def change(step: Step) -> Step:
        changes: dict[str, Sequence[Task]] = {}
        for task in step:
            op = task.op
            if isinstance(op, AllToAll) and op.part != COUNTS and (gradients or not op.part.endswith("_backward")):
                changes[task.name] = around(task, op)
        return step.replace(changes) if changes else step

    return plan.each_step(change)


def _between(
    task: Task,
    op: AllToAll,
    packed: AllToAll,
    pack: Callable[..., PackRows],
    unpack: Callable[..., UnpackRows],
    moved: tuple[float, float],
) -> list[Task]:
    """Return packing, exchange and unpacking; `moved` bytes are read and written in the first and in the last."""
    (whole,) = op.buffer.segments
    shape, where = (op.module, op.part, op.width, whole.dtype), (op.positions, op.begin, op.end)
    # Rows are written before anybody knows how many will come.
    told = tuple(name for name in task.after if name.startswith(f"{COUNTS}."))
    after = tuple(name for name in task.after if name not in told)
    first = Task(f"pack.{task.name}", pack(*shape, moved[0], *where), COMPUTE, after)
    sent = replace(task, op=packed, after=(first.name, *told))
    return [first, sent, Task(f"unpack.{task.name}", unpack(*shape, moved[1], *where), COMPUTE, (task.name,))]
