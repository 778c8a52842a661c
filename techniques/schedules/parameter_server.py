"""Parameter server: push each gradient to the server that owns it, pull the mean back; every rank serves a share.

Helps: many ranks, because a push has one hop where a ring all-reduce has as many as ranks; large tensors. Does not: links
that carry both directions badly; a cluster file must say what reduce-scatter and all-gather cost there, else a ring's
halves are assumed and nothing differs from an all-reduce. Lossless.
Source: Jiang et al., BytePS, OSDI 2020 (recollection); the BSP-PS and WFBP-PS of the survey (arXiv:2005.13247).
"""

from __future__ import annotations

from dataclasses import replace

from orch.plan import AllGatherShards, AllReduce, Buffer, Collective, Plan, ReduceScatter, Step, Task
from orch.technique import Context, Form, Knobs, Slot, Technique, fuse_each_wave, quantity
from orch.units import Bytes
from techniques.schedules.bucketed import fill


class Config(Knobs):
    """Which gradients share a push."""

    bucket: Bytes = quantity(
        "0B", "gradients share a push until it serves this much; 0: one each, as soon as it exists", least=0.0
    )


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Put a reduce-scatter (push) and an all-gather (pull) in place of every all-reduce, each on a bucket of its own."""
    fused = fuse_each_wave(
        plan,
        lambda plan, step, sends: fill([context.gradient_bytes(s) for s in sends], config.bucket, config.bucket),
    )
    return fused.each_step(lambda step: _served(step, context.world_size))


def _served(step: Step, world_size: int) -> Step:
    # A tensor without elements has no shares to serve.
    return step.replace({task.name: _pair(task, world_size) for task in step.of(AllReduce) if task.op.nbytes})


def _pair(task: Task, world_size: int) -> tuple[Task, Task]:
    suffix = task.name.removeprefix("all_reduce")
    op: Collective = task.op  # type: ignore[assignment]
    buffer: Buffer = replace(op.buffer, name=f"reduce_scatter{suffix}", pad_to=world_size)
    push = replace(task, name=buffer.name, op=ReduceScatter(buffer))
    pull = replace(task, name=f"all_gather{suffix}", op=AllGatherShards(buffer), after=(push.name,), after_previous=())
    return push, pull


technique = Technique(
    name="parameter-server",
    slot=Slot.SCHEDULE,
    rewrite=rewrite,
    source="BytePS, OSDI 2020",
    lossless=True,
    config=Config,
    needs=frozenset({Form.DENSE, Form.ADDABLE}),
)
