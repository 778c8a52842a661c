"""All-gather: every rank receives every payload, decodes all and adds them up in rank order. As exact as its
compressor.

Helps: payloads that no all-reduce can add (sparse, quantised), few workers. Does not: many workers, traffic grows
with them. Source: the usual exchange of Top-k S-SGD, as in gtopkssgd and GRACE (Xu et al., ICDCS 2021).
"""

from __future__ import annotations

from dataclasses import replace

from orch.plan import COMPUTE, Aggregate, AllGather, Buffer, Plan, Step, Task
from orch.technique import Context, Form, Knobs, Slot, Technique


class Config(Knobs):
    """No knobs."""


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Gather each payload, then decode it behind backward."""
    return plan.each_step(_gathered)


def _gathered(step: Step) -> Step:
    return step.replace({task.name: _chain(task) for task in step.of(Aggregate)}).by_wave()


def _chain(task: Task) -> tuple[Task, Task]:
    op: Aggregate = task.op  # type: ignore[assignment]
    suffix = task.name.removeprefix("aggregate")
    name = f"all_gather{suffix}"
    gather = replace(task, name=name, op=AllGather(Buffer(name, op.buffer.segments)))
    return gather, Task(f"decode{suffix}", op.decode, COMPUTE, (name,), role=task.role, group=task.group)


technique = Technique(
    name="all-gather",
    slot=Slot.EXCHANGE,
    rewrite=rewrite,
    source="arXiv:1704.05021",
    lossless=True,
    config=Config,
    needs=frozenset({Form.SPARSE, Form.QUANTISED}),
)
