"""Top-k: send the k entries of a gradient that are largest in magnitude, as values and indices. Lossy.

Helps: slow links, big layers, few workers (the gathered payload grows with their number: density below 1/workers at
least). Does not: fast links, where selecting costs more than sending; many workers.
Source: Aji and Heafield, EMNLP 2017 (arXiv:1704.05021); rule for k and wire format: gtopkssgd's repository
(arXiv:1901.04359).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from orch.plan import (
    COMPUTE,
    ITEM_SIZE,
    Aggregate,
    Buffer,
    Decode,
    Encode,
    Executor,
    Plan,
    Segment,
    Step,
    Task,
)
from orch.technique import Context, Form, Knobs, Slot, Technique, at_least_one, count, dense_sends, fraction
from orch.units import Fraction

if TYPE_CHECKING:
    from orch.cluster import Cluster, Span

# Radix selection reads the keys once for each of four 8-bit digits, then once more to collect: our estimate.
SELECT_PASSES = 5


class Config(Knobs):
    """How much is kept, and of which tensors."""

    density: Fraction = fraction(0.001, "share of entries that is sent; at least one entry of every tensor", above=0.0)
    min_numel: int = count(0, "tensors with fewer elements are sent dense", least=0)


@dataclass(frozen=True, slots=True)
class Select(Encode):
    """Keep the k largest entries of a gradient: [numel] -> indices int32 [k] ascending, values [k]."""

    numel: int
    k: int
    dtype: str
    knows_sent: ClassVar[bool] = True

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        moved = SELECT_PASSES * 4.0 * self.numel + self.k * (4.0 + ITEM_SIZE[self.dtype])
        seconds: float = cluster.device.compute_s(0.0, moved)
        return seconds

    def run(self, executor: Executor) -> None:
        from techniques.compression.top_k_kernels import select

        indices, values = select(executor.gradient(self.tensor).flatten(), self.k)
        executor.segment(indices_of(self.tensor)).copy_(indices)
        executor.segment(values_of(self.tensor)).copy_(values)

    def subtract_sent(self, executor: Executor, accumulated: Any) -> None:
        from techniques.compression.top_k_kernels import subtract

        indices, values = executor.segment(indices_of(self.tensor)), executor.segment(values_of(self.tensor))
        subtract(accumulated, indices, values)

    def subtract_sent_s(self, cluster: Cluster, span: Span) -> float:
        seconds: float = cluster.device.compute_s(0.0, 12.0 * self.k)
        return seconds


@dataclass(frozen=True, slots=True)
class Spread(Decode):
    """Add up what every rank sent, in rank order, and divide by their number: P x (indices, values) [k] -> [numel]."""

    numel: int
    k: int
    dtype: str

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        received = span.size * self.k
        seconds: float = cluster.device.compute_s(float(received), 8.0 * self.numel + 12.0 * received)
        return seconds

    def run(self, executor: Executor) -> None:
        from techniques.compression.top_k_kernels import mean

        gathered = executor.gathered(indices_of(self.tensor)), executor.gathered(values_of(self.tensor))
        executor.set_gradient(self.tensor, mean(*gathered, self.numel))


def indices_of(tensor: str) -> str:
    """Return the name of the segment that carries the kept indices."""
    return f"{tensor}:indices"


def values_of(tensor: str) -> str:
    """Return the name of the segment that carries the kept values."""
    return f"{tensor}:values"


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Replace each dense all-reduce by select and a payload that some exchange aggregates."""
    return plan.each_step(lambda step: _sparse(step, config))


def _sparse(step: Step, config: Config) -> Step:
    changes: dict[str, Sequence[Task]] = {}
    for task, segment in dense_sends(step):
        if segment.numel >= max(1, config.min_numel):
            changes[task.name] = _chain(task, segment, at_least_one(config.density * segment.numel))
    return step.replace(changes)


def _chain(send: Task, gradient: Segment, k: int) -> tuple[Task, Task]:
    tensor = gradient.tensor
    encode = Task(f"encode.{tensor}", Select(tensor, gradient.numel, k, gradient.dtype), COMPUTE, send.after)
    indices = Segment(indices_of(tensor), k, "int32", tensor)
    values = Segment(values_of(tensor), k, gradient.dtype, tensor)
    name = f"aggregate.{tensor}"
    op = Aggregate(Buffer(name, (indices, values)), Spread(tensor, gradient.numel, k, gradient.dtype))
    return encode, Task(name, op, send.stream, (encode.name,), role=send.role, group=send.group)


technique = Technique(
    name="top-k",
    slot=Slot.COMPRESSOR,
    rewrite=rewrite,
    source="arXiv:1704.05021",
    lossless=False,
    config=Config,
    needs=frozenset({Form.DENSE}),
    gives=Form.SPARSE,
    defaults=("error-feedback", "all-gather"),
)
