"""Two-level: rows are sorted inside the node first, then travel between ranks of equal place on their nodes.

Helps: many ranks and short messages: N - 1 messages leave a rank in place of P - m, each m times as long. Does not: long
messages on few ranks, for all rows cross the node too; one rank a node (then it changes nothing). Lossless, bit-equal.
Source: Tutel's 2DH (Hwang et al., MLSys 2023; text and code seen). How many rows a relay passes on is told once a layer where no
token is dropped (ours: the paper's layers have a capacity).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orch.plan import ACROSS, COUNTS, INSIDE, RELAYED, AllToAll, Plan, Step, Task
from orch.technique import Context, Knobs, Slot, Technique
from techniques.moe._ways import INTRA, NEIGHBOURS, each_exchange, expanded, with_numel


class Config(Knobs):
    """No knobs."""


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Make two hops of every exchange of rows."""
    new = each_exchange(plan, context, _hops)
    return new if new is plan else new.each_step(_told)


def _hops(task: Task, op: AllToAll, number: int) -> Sequence[Task]:
    """Return both hops: inside the node and then across on the way out, the reverse on the way back."""
    legs = (INSIDE, ACROSS) if op.part in ("dispatch", "combine_backward") else (ACROSS, INSIDE)
    (whole,) = op.buffer.segments
    names = (f"{task.name}.{legs[0]}", task.name)
    tasks = []
    for name, leg in zip(names, legs, strict=True):
        hop = replace(task, name=name, op=with_numel(op, name, whole.numel // op.positions, leg=leg, neighbours=number))
        tasks.append(replace(hop, stream=INTRA, group=NEIGHBOURS) if leg == INSIDE else hop)
    return [tasks[0], replace(tasks[1], after=(tasks[0].name,))]


def _told(step: Step) -> Step:
    """Tell each relay how many rows it will pass on, beside the counts that tell ranks how many they will get."""
    by_module: dict[str, Task] = {}
    number = {
        task.op.module: task.op.neighbours for task in step if isinstance(task.op, AllToAll) and task.op.leg == INSIDE
    }
    for task in step:
        op = task.op
        if isinstance(op, AllToAll) and op.part == COUNTS:
            name = f"{RELAYED}.{op.module}"
            (told,) = op.buffer.segments
            relayed = replace(op, part=RELAYED, neighbours=number[op.module])
            relayed = replace(relayed, buffer=AllToAll.buffer_of(name, told.numel, told.dtype))
            by_module[op.module] = Task(name, relayed, INTRA, task.after, group=NEIGHBOURS)
    if not by_module:
        return step
    names = {f"{COUNTS}.{module}": (task, told) for module, told in by_module.items() for task in step
             if task.name == f"{COUNTS}.{module}"}  # fmt: skip
    return expanded(step, {name: list(pair) for name, pair in names.items()})


technique = Technique(
    name="two-level-a2a",
    slot=Slot.ALL_TO_ALL,
    rewrite=rewrite,
    source="arXiv:2206.03382",
    lossless=True,
    config=Config,
)
