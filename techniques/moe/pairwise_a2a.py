"""Pairwise: an all-to-all as P - 1 steps in each of which a rank sends to one other and hears of one.

Helps: networks that many messages at once congest. Does not: where every step's start-up counts. Lossless, bit-equal.
Source: Thakur, Rabenseifner, Gropp (2005, recollection); the sequential form of ScheMoE's model (EuroSys 2024, equation 16).
"""

from __future__ import annotations

from dataclasses import replace

from orch.plan import COUNTS, WHOLE, AllToAll, Plan, Step, Task
from orch.technique import Context, Knobs, Slot, Technique


class Config(Knobs):
    """No knobs."""


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Let every exchange of rows go pair by pair."""

    def stepwise(task: Task) -> Task:
        op = task.op
        if isinstance(op, AllToAll) and op.leg == WHOLE and op.part != COUNTS:
            return replace(task, op=replace(op, algorithm="pairwise"))
        return task

    return plan.each_step(lambda step: Step(tuple(map(stepwise, step))))


technique = Technique(
    name="pairwise-a2a",
    slot=Slot.ALL_TO_ALL,
    rewrite=rewrite,
    source="10.1177/1094342005051521",
    lossless=True,
    config=Config,
)
