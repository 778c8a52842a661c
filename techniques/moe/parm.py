"""Parm: rows go to all ranks that share their expert in one exchange, and what these computed is added up where it comes back.

Helps: experts shared out and cut into slices (`parallel.experts`, `parallel.slices`) on networks that are no faster inside a node
than between nodes, or where start-ups count: no gather before experts, no scatter behind. Does not: nodes with a fast network
inside, as each row crosses once a slice (the paper's gain is mostly repeated work removed, of which there is none here); whole
experts, or slices of all experts on every rank (then it changes nothing). Lossless.
Source: Pan et al., INFOCOM 2024 (arXiv:2407.00599; abstract; details recollected and derived, checked in numbers): schedule S1
with its EP&ESP all-to-all, for ranks that each have tokens of their own, as behind the paper's split of them. S2 splits behind
the gate instead, which needs attention cut over the ranks of a node; orch draws none, so the choice is S1 or the baseline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from orch.plan import COUNTS, NET, AllToAll, Crossing, GatherRows, Plan, Rows, ScatterRows, Step, Task, crossings
from orch.technique import Context, Knobs, Slot, Technique, choice
from techniques.moe._pipeline import seconds

BLOCK, SLICES = "block", "slices"


class Config(Knobs):
    """Which schedule."""

    schedule: Literal["auto", "s1", "baseline"] = choice(
        "auto", "auto: the faster one of each layer, by costs; s1: one exchange; baseline: exchange, gather, scatter"
    )


def settings(config: Config) -> Iterator[Config]:
    """Yield a config with each schedule that `auto` chooses between."""
    for schedule in ("s1", "baseline") if config.schedule == "auto" else (config.schedule,):
        yield config.model_copy(update={"schedule": schedule})


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Let rows of every layer go to all slices at once where that is faster."""
    if BLOCK not in plan.groups or config.schedule == "baseline":
        return plan
    slices = plan.groups[SLICES].size
    return plan.each_step(lambda step: _fused(plan, step, context, slices, config.schedule == "s1"))


def _fused(plan: Plan, step: Step, context: Context, slices: int, always: bool) -> Step:
    by_module: dict[str, list[Crossing]] = {}
    for crossing in crossings(step):
        if any(isinstance(task.op, GatherRows) for task in crossing.stages) and isinstance(
            crossing.stages[0].op, AllToAll
        ):
            by_module.setdefault(crossing.module, []).append(crossing)
    chosen: dict[str, list[Task]] = {}
    for both in by_module.values():
        new = [_stages(crossing, slices) for crossing in both]
        if always or _sum(plan, context, new) < _sum(plan, context, [crossing.stages for crossing in both]):
            for crossing, stages in zip(both, new, strict=True):
                chosen |= {task.name: [] for task in crossing.stages}
                chosen[crossing.stages[0].name] = stages
    return _replaced(step, chosen, slices) if chosen else step


def _sum(plan: Plan, context: Context, crossings_of: Sequence[Sequence[Task]]) -> float:
    return sum(seconds(plan, context, task) for stages in crossings_of for task in stages)


def _stages(crossing: Crossing, slices: int) -> list[Task]:
    """Return the crossing as exchange, expert, exchange."""
    expert = crossing.expert
    place = crossing.stages.index(expert)
    suffix = "_backward" if crossing.backward else ""
    parts = ("combine", "dispatch") if crossing.backward else ("dispatch", "combine")
    out = _exchange(crossing.stages[0], f"{parts[0]}{suffix}", crossing.module, slices, crossing.stages[0].after)
    after = (expert.name,)
    back = _exchange(crossing.stages[place + 1], f"{parts[1]}{suffix}", crossing.module, slices, after)
    return [out, replace(expert, after=(out.name,)), back]


def _exchange(like: Task, part: str, module: str, slices: int, after: tuple[str, ...]) -> Task:
    """Return the exchange with all slices; `like` is the stage that has the rows now."""
    op = like.op
    assert isinstance(op, Rows)
    name = f"{part}.{module}"
    (whole,) = op.buffer.segments
    numel = whole.numel if isinstance(op, ScatterRows) else whole.numel * slices
    buffer = Rows.buffer_of(name, numel, whole.dtype)
    new = AllToAll(buffer, module, part, op.positions, op.begin, op.end, op.ragged, op.width, copies=slices)
    return Task(name, new, NET, after, group=BLOCK)


def _replaced(step: Step, chosen: Mapping[str, Sequence[Task]], slices: int) -> Step:
    """Return the step with the new stages where the first old one stood; counts go to all slices as well.

    What waited for an old stage finds its name again: experts keep theirs, and the last exchange is called as it was.
    """
    modules = {task.op.module for stages in chosen.values() for task in stages if isinstance(task.op, AllToAll)}
    result: list[Task] = []
    for task in step:
        op = task.op
        if isinstance(op, AllToAll) and op.part == COUNTS and op.module in modules:
            (numbers,) = op.buffer.segments
            buffer = Rows.buffer_of(task.name, numbers.numel * slices, numbers.dtype)
            result.append(replace(task, op=replace(op, buffer=buffer, copies=slices), group=BLOCK))
        else:
            result += chosen.get(task.name, (task,))
    return Step(tuple(result))


technique = Technique(
    name="parm",
    slot=Slot.EXPERTS,
    rewrite=rewrite,
    source="arXiv:2407.00599",
    lossless=True,
    config=Config,
    settings=settings,
    excludes={
        "pipe-a2a": "it has a way of its own for rows",
        "two-level-a2a": "it has a way of its own for rows",
        **dict.fromkeys(("bf16-rows", "int8-rows", "bfp8-rows"), "what it adds up must come back as numbers"),
    },
)
