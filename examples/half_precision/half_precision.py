"""Half precision: gradients travel as fp16 or bf16 and are added up as such: half the bytes. Lossy.

Helps: slow links, large tensors. Does not: small tensors, where the start-up counts; gradients already of two bytes;
fp16 overflows above 65504, where bf16 does not.
Source: Micikevicius et al., ICLR 2018 (arXiv:1710.03740), section 3.2 on gradients; torch's fp16_compress_hook.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from orch.plan import COMPUTE, ITEM_SIZE, AllReduce, Buffer, Decode, Encode, Executor, Plan, Segment, Step, Task
from orch.technique import Context, Form, Knobs, Slot, Technique, choice, count, dense_sends

if TYPE_CHECKING:
    from orch.cluster import Cluster, Span


class Config(Knobs):
    """Which format, and from which size on."""

    format: Literal["fp16", "bf16"] = choice(
        "bf16", "fp16 keeps 11 bits and overflows; bf16 keeps 8 and the range of fp32"
    )
    min_numel: int = count(0, "tensors with fewer elements are sent as they are", least=0)


@dataclass(frozen=True, slots=True)
class Narrow(Encode):
    """Round a gradient to a shorter format: [numel] -> [numel] of `to`."""

    numel: int
    dtype: str
    to: str

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        seconds: float = cluster.device.compute_s(0.0, self.numel * float(ITEM_SIZE[self.dtype] + ITEM_SIZE[self.to]))
        return seconds

    def run(self, executor: Executor) -> None:
        # The segment has the short dtype, so copying into it rounds.
        executor.segment(payload_of(self.tensor)).copy_(executor.gradient(self.tensor).flatten())


@dataclass(frozen=True, slots=True)
class Widen(Decode):
    """Give the mean its old format back: [numel] of the short format -> [numel]."""

    numel: int
    dtype: str
    of: str

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        seconds: float = cluster.device.compute_s(0.0, self.numel * float(ITEM_SIZE[self.dtype] + ITEM_SIZE[self.of]))
        return seconds

    def run(self, executor: Executor) -> None:
        from half_precision_kernels import widened

        executor.set_gradient(
            self.tensor, widened(executor.segment(payload_of(self.tensor)), executor.gradient(self.tensor))
        )


def payload_of(tensor: str) -> str:
    """Return the name of the segment that carries the rounded gradient."""
    return f"{tensor}:half"


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Replace each dense all-reduce of a longer format by narrow, all-reduce, widen."""
    return plan.each_step(lambda step: _narrowed(step, config))


def _narrowed(step: Step, config: Config) -> Step:
    changes: dict[str, Sequence[Task]] = {}
    for send, gradient in dense_sends(step):
        if gradient.numel >= max(1, config.min_numel) and ITEM_SIZE[gradient.dtype] > ITEM_SIZE[config.format]:
            changes[send.name] = _chain(send, gradient, config.format)
    return step.replace(changes)


def _chain(send: Task, gradient: Segment, to: str) -> tuple[Task, Task, Task]:
    tensor, numel, dtype = gradient.tensor, gradient.numel, gradient.dtype
    encode = Task(f"encode.{tensor}", Narrow(tensor, numel, dtype, to), COMPUTE, send.after)
    buffer = Buffer(send.name, (Segment(payload_of(tensor), numel, to, tensor),))
    reduce = Task(send.name, AllReduce(buffer), send.stream, (encode.name,), role=send.role, group=send.group)
    decode = Task(f"decode.{tensor}", Widen(tensor, numel, dtype, to), COMPUTE, (reduce.name,))
    return encode, reduce, decode


technique = Technique(
    name="half-precision",
    slot=Slot.COMPRESSOR,
    rewrite=rewrite,
    source="arXiv:1710.03740",
    lossless=False,
    config=Config,
    needs=frozenset({Form.DENSE}),
    gives=Form.DENSE,  # shorter numbers, but still one for each element, which an all-reduce can add
)
