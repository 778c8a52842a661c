"""Naive: exchange, compute, exchange back, nothing beside it; gradients are sent after backward. Lossless.

Helps: never; it is what other schedules of mixture-of-experts layers are measured against.
Source: DeepSpeed-MoE (Rajbhandari et al., ICML 2022, recollection; code seen): gate, dispatch, experts, combine in one
chain, all-reduce of gradients at the end of backward. `gather: first` is its older order for experts cut into slices, as Parm
models it (recollection; a commit message names the order): gather, exchange, experts, all-reduce, exchange, keep a share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from orch.errors import OrchError
from orch.plan import AllToAll, Crossing, GatherRows, Plan, Rows, Step, SumRows, Task, crossings
from orch.technique import Context, Knobs, Slot, Technique, choice
from techniques.schedules.s_sgd import held_back


class Config(Knobs):
    """When rows are gathered for slices."""

    gather: Literal["behind", "first"] = choice(
        "behind",
        "where experts are cut into slices, rows are gathered behind the exchange, or first: then it carries every row once a "
        "slice, and what slices computed is added up before the way back (planned and simulated only)",
    )


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Hold gradients back until the last backward task has ended; the layers are serial."""
    plan = plan.each_step(held_back)
    if config.gather == "behind":
        return plan
    return plan.each_step(lambda step: _gathered_first(plan, step))


def _gathered_first(plan: Plan, step: Step) -> Step:
    changes: dict[str, Sequence[Task]] = {}
    for crossing in crossings(step):
        kinds = [type(task.op) for task in crossing.stages]
        if GatherRows in kinds and AllToAll in kinds:
            stages = _stages(crossing, plan.groups[crossing.stages[1].group].size)
            last = f"order_backward.{crossing.module}" if crossing.backward else f"restore.{crossing.module}"
            changes |= {task.name: [] for task in crossing.stages} | {crossing.stages[0].name: stages}
            changes[last] = [replace(task, after=(stages[-1].name,)) for task in step if task.name == last]
    return Step(tuple(new for task in step for new in changes.get(task.name, (task,)))) if changes else step


def _stages(crossing: Crossing, slices: int) -> list[Task]:
    """Return gather, exchange, experts, sum, exchange; in backward the sum is none, and a share is given back at the end."""
    if [type(task.op) for task in crossing.stages[:2]] != [AllToAll, GatherRows] or len(crossing.stages) != 5:
        raise OrchError(
            f"gather: first takes only rows that travel as they are, and a codec changes those of {crossing.module}",
            code="E500", hint="gather: behind, or no codec",
        )  # fmt: skip
    out, gather, expert, scatter, back = crossing.stages
    added = scatter.op
    assert isinstance(added, Rows)
    summed = SumRows(added.buffer, added.module, added.part, added.positions, added.begin, added.end, added.ragged)
    order = [gather, _times(out, slices), expert, replace(scatter, op=summed), _times(back, slices)]
    if crossing.backward:
        order[3:] = [order[4], scatter]
    after = out.after
    result = []
    for task in order:
        result.append(replace(task, after=after))
        after = (task.name,)
    return result


def _times(task: Task, slices: int) -> Task:
    """Return an exchange of the rows of all slices."""
    op = task.op
    assert isinstance(op, Rows)
    (whole,) = op.buffer.segments
    return replace(task, op=replace(op, buffer=Rows.buffer_of(task.name, whole.numel * slices, whole.dtype)))


technique = Technique(
    name="naive-moe",
    slot=Slot.EXPERTS,
    rewrite=rewrite,
    source="arXiv:2201.05596",
    lossless=True,
    config=Config,
)
