"""torch-ddp: PyTorch's own DistributedDataParallel, the baseline that most people would use. Lossless without a hook.

Helps: always available, well tuned. Does not: many small buckets on slow start-ups, or exposed communication after
backward. The plan is what DDP does from its second step on, once it has rebuilt its buckets in the order in which
gradients became ready; DDP drives its collectives itself, so nothing else can be stacked on it.
Source: Li et al., PyTorch Distributed, VLDB 2020 (arXiv:2006.15704); bucket rule read in torch 2.13.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from orch.plan import AllReduce, Plan, Step, Task
from orch.technique import Context, Form, Knobs, Slot, Technique, choice, flag, fuse_each_wave, quantity
from orch.units import Bytes
from techniques.schedules.bucketed import fill


class Config(Knobs):
    """Arguments of DistributedDataParallel."""

    bucket_cap: Bytes = quantity("25MiB", "DDP's bucket_cap_mb", least=0.0)
    first_bucket: Bytes = quantity("1MiB", "cap of the first bucket, which is ready first", least=0.0)
    gradient_as_bucket_view: bool = flag(False, "gradients are views into buckets, which saves a copy of all gradients")
    static_graph: bool = flag(False, "promise that every step uses the same parameters in the same order")
    hook: Literal["none", "fp16", "bf16"] = choice("none", "DDP's communication hook: the dtype sent in place of fp32")


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Fill buckets in ready order by DDP's rule; a hook changes what is sent, not which tensors share a bucket."""
    plan = fuse_each_wave(
        plan,
        lambda plan, step, sends: fill(
            [context.gradient_bytes(send) for send in sends], config.first_bucket, config.bucket_cap
        ),
    )
    return plan if config.hook == "none" else plan.each_step(lambda step: _cast(step, config.hook))


def _cast(step: Step, dtype: str) -> Step:
    return Step(tuple(_cast_task(task, dtype) for task in step))


def _cast_task(task: Task, dtype: str) -> Task:
    if not isinstance(task.op, AllReduce):
        return task
    buffer = task.op.buffer
    segments = tuple(replace(segment, dtype=dtype) for segment in buffer.segments)
    return replace(task, op=replace(task.op, buffer=replace(buffer, segments=segments)))


technique = Technique(
    name="torch-ddp",
    slot=Slot.SCHEDULE,
    rewrite=rewrite,
    source="arXiv:2006.15704",
    lossless=True,
    config=Config,
    needs=frozenset({Form.DENSE}),
    engine="techniques.schedules.torch_ddp_kernels:DdpEngine",
    exact=lambda config: config.hook == "none",
)
