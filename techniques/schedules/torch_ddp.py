"""torch-ddp: PyTorch's own DistributedDataParallel, the baseline that most people would use. Lossless without a hook.

Helps: always available, well tuned. Does not: many small buckets on slow start-ups, or exposed communication after
backward. The plan is what DDP does from its second step on, once it has rebuilt its buckets in the order in which
gradients became ready; DDP drives its collectives itself, so nothing else can be stacked on it.
Source: Li et al., PyTorch Distributed, VLDB 2020 (arXiv:2006.15704); bucket rule and hooks read in torch 2.13.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Self

from pydantic import model_validator

from orch.errors import OrchError
from orch.plan import AllReduce, Plan, Step, Task
from orch.technique import Context, Form, Knobs, Slot, Technique, choice, count, flag, fuse_each_wave, quantity
from orch.units import Bytes
from techniques.compression import error_feedback, power_sgd
from techniques.schedules.bucketed import fill

# torch's defaults of PowerSGDState, but for the rank, which is a knob, and the start, which is DDP's earliest.
MIN_COMPRESSION_RATE = 2.0
START_STEP = 2


class Config(Knobs):
    """Arguments of DistributedDataParallel."""

    bucket_cap: Bytes = quantity("25MiB", "DDP's bucket_cap_mb", least=0.0)
    first_bucket: Bytes = quantity("1MiB", "cap of the first bucket, which is ready first", least=0.0)
    gradient_as_bucket_view: bool = flag(False, "gradients are views into buckets, which saves a copy of all gradients")
    static_graph: bool = flag(False, "promise that every step uses the same parameters in the same order")
    hook: Literal["none", "fp16", "bf16", "power-sgd"] = choice(
        "none",
        "DDP's communication hook: the dtype sent in place of fp32, or torch's powerSGD_hook (on gloo: one bucket)",
    )
    rank: int = count(4, "rank of hook power-sgd's approximation (torch's own default is 1)", least=1)

    @model_validator(mode="after")
    def _rank_means_something(self) -> Self:
        if self.hook != "power-sgd" and self.rank != type(self).model_fields["rank"].default:
            raise ValueError(f"rank {self.rank} is of hook power-sgd, and the hook is {self.hook}")
        return self


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Fill buckets in ready order by DDP's rule; a hook changes what is sent, not which tensors share a bucket."""
    buckets: list[tuple[str, ...]] = []

    def group(plan: Plan, step: int, sends: list[Task]) -> list[int]:
        ends = fill([context.gradient_bytes(send) for send in sends], config.first_bucket, config.bucket_cap)
        if step == 0:
            members = zip([0, *ends], ends, strict=False)
            buckets.extend(tuple(t for send in sends[a:b] for t in send.op.tensors) for a, b in members)
        return ends

    fused = fuse_each_wave(plan, group)  # type: ignore[arg-type]
    if config.hook == "none":
        return fused
    if config.hook == "power-sgd":
        return _power_sgd(plan, context, config, buckets)
    return fused.each_step(lambda step: _cast(step, config.hook))


def _power_sgd(plan: Plan, context: Context, config: Config, buckets: list[tuple[str, ...]]) -> Plan:
    """Draw torch's powerSGD_hook: per bucket what it sends dense, then all P, then all Q.

    Raises OrchError (E514) for several buckets on gloo. There the hook waits for its second and third all-reduce in the
    thread of its first, and which bucket's comes next is decided by timing: ranks launch in different orders.
    """
    if len(buckets) > 1 and context.cluster.device.kind == "cpu":
        total = sum(4 * context.numel(tensor) for bucket in buckets for tensor in bucket)
        caps = f"bucket_cap and first_bucket of {-(-total // (1 << 20))}MiB or more make one"
        message = (
            f"torch's powerSGD_hook cannot run {len(buckets)} buckets on gloo: it launches collectives from gloo's threads, "
            "so ranks launch them in different orders, and hang or die (op.preamble.length <= op.nbytes)"
        )
        raise OrchError(message, code="E514", hint=f"{caps}; or use power-sgd, which any schedule runs")
    low = power_sgd.Config(rank=config.rank, min_compression_rate=MIN_COMPRESSION_RATE)
    plan = error_feedback.rewrite(power_sgd.rewrite(plan, context, low), context, error_feedback.Config())
    bucket_of = {tensor: number for number, bucket in enumerate(buckets) for tensor in bucket}
    return plan.each_step(lambda step: _one_send_a_kind(step.by_wave(), bucket_of))


def _one_send_a_kind(step: Step, bucket_of: dict[str, int]) -> Step:
    together: dict[tuple[int, int, bool], list[Task]] = {}
    for depth, wave in enumerate(step.waves()):
        for task in wave:
            if isinstance(task.op, AllReduce):
                dense = all(segment.is_gradient for segment in task.op.buffer.segments)
                together.setdefault((depth, bucket_of[task.op.tensors[0]], dense), []).append(task)
    return step.fuse(list(together.values()))


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
