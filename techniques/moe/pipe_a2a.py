"""Pipe-A2A: rows for ranks of the same node and rows for others travel at once, each on its own network.

Helps: nodes of several ranks whose inner network takes a good share of an exchange; at most 2 times, max in place of the sum.
Does not: one rank a node, or one node (then it changes nothing); short messages. Lossless, bit-equal.
Source: ScheMoE (Shi et al., EuroSys 2024), section 5, equations 16 to 18, and the authors' repository: two communicators, pairs
chosen by whether their ranks share a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orch.plan import FAR, NEAR, AllToAll, Plan, Task
from orch.technique import Context, Knobs, Slot, Technique
from techniques.moe._ways import EXPERTS, INTRA, NEIGHBOURS, each_exchange, with_numel


class Config(Knobs):
    """No knobs."""


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Make two halves of every exchange of rows, side by side."""
    if EXPERTS not in plan.groups:
        return plan
    size = plan.groups[EXPERTS].size
    return each_exchange(plan, context, lambda task, op, number: _halves(task, op, number, size))


def _halves(task: Task, op: AllToAll, number: int, size: int) -> Sequence[Task]:
    (whole,) = op.buffer.segments
    each = whole.numel // op.positions
    near = each * number // size
    name = f"{task.name}.near"
    return [
        replace(task, name=name, op=with_numel(op, name, near, leg=NEAR, neighbours=number), stream=INTRA, group=NEIGHBOURS),
        replace(task, op=with_numel(op, task.name, each - near, leg=FAR, neighbours=number)),
    ]  # fmt: skip


technique = Technique(
    name="pipe-a2a",
    slot=Slot.ALL_TO_ALL,
    rewrite=rewrite,
    source="10.1145/3627703.3650083",
    lossless=True,
    config=Config,
)
