"""Codecs of rows: what stands before and behind each exchange of a mixture, and what then travels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from orch.plan import COMPUTE, COUNTS, AllToAll, PackRows, Plan, Rows, Step, Task, UnpackRows

PASSES = 3
"""Rows are read twice (for their range, then to be written in it) and written once."""


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

    def change(step: Step) -> Step:
        changes: dict[str, Sequence[Task]] = {}
        for task in step:
            op = task.op
            if isinstance(op, AllToAll) and op.part != COUNTS and (gradients or not op.part.endswith("_backward")):
                changes[task.name] = _around(task, op, pack, unpack, form, passes)
        return step.replace(changes) if changes else step

    return plan.each_step(change)


def _around(
    task: Task,
    op: AllToAll,
    pack: Callable[..., PackRows],
    unpack: Callable[..., UnpackRows],
    form: Callable[[int], tuple[int, str]],
    passes: int,
) -> list[Task]:
    (whole,) = op.buffer.segments
    items, dtype = form(op.width)
    buffer = Rows.buffer_of(task.name, whole.numel // op.width * items, dtype)
    moved = 1.0 * ((passes - 1) * whole.nbytes + buffer.nbytes)
    facts = (op.module, op.part, op.width, whole.dtype, moved, op.positions, op.begin, op.end)
    # Rows are written before anybody knows how many will come.
    told = tuple(name for name in task.after if name.startswith(f"{COUNTS}."))
    first = Task(f"pack.{task.name}", pack(*facts), COMPUTE, tuple(name for name in task.after if name not in told))
    sent = replace(task, op=replace(op, buffer=buffer), after=(first.name, *told))
    read = 1.0 * (whole.nbytes + buffer.nbytes)
    facts = (*facts[:4], read, *facts[5:])
    return [first, sent, Task(f"unpack.{task.name}", unpack(*facts), COMPUTE, (task.name,))]
