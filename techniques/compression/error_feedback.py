"""Error feedback: what a compressor did not send is added to the next step's gradient. Lossy only by delay.

Helps: biased compressors (top-k, low rank, sign) converge with it and often not without. Costs a residual a parameter.
Does not: unbiased compressors, where it adds variance.
Source: Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019 (arXiv:1901.09847).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from orch.plan import COMPUTE, Encode, Executor, Operation, Plan, Step, Task
from orch.technique import ALL_FORMS, Context, Form, Knobs, Slot, Technique, number

if TYPE_CHECKING:
    from orch.cluster import Cluster, Span

OWNER = "error-feedback"


class Config(Knobs):
    """How long a residual is remembered."""

    decay: float = number(
        1.0, "factor on the residual before it is added; below 1 old errors fade", least=0.0, most=1.0
    )


@dataclass(frozen=True, slots=True)
class Compensate(Operation):
    """Add the residual to the gradient, and keep the sum until it is known what of it was sent: [numel], in place."""

    kind: ClassVar[str] = "compensate"
    tensor: str
    numel: int
    decay: float

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        # Reads residual and gradient, writes both.
        seconds: float = cluster.device.compute_s(2.0 * self.numel, 16.0 * self.numel)
        return seconds

    def run(self, executor: Executor) -> None:
        from techniques.compression.error_feedback_kernels import compensate, residual

        gradient = executor.gradient(self.tensor)
        compensate(gradient, executor.state(OWNER, self.tensor, lambda: residual(gradient)), self.decay)

    @property
    def state_bytes(self) -> int:
        return 4 * self.numel

    @property
    def tensors(self) -> tuple[str, ...]:
        return (self.tensor,)


@dataclass(frozen=True, slots=True)
class Retain(Operation):
    """Keep as residual what `sender` did not send of the compensated gradient."""

    kind: ClassVar[str] = "retain"
    tensor: str
    sender: Operation

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        return self.sender.subtract_sent_s(cluster, span)

    def run(self, executor: Executor) -> None:
        from techniques.compression.error_feedback_kernels import residual

        gradient = executor.gradient(self.tensor)
        self.sender.subtract_sent(executor, executor.state(OWNER, self.tensor, lambda: residual(gradient)))

    @property
    def works_for(self) -> Operation:
        return self.sender

    @property
    def tensors(self) -> tuple[str, ...]:
        return (self.tensor,)


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Compensate before the first encode of each tensor, retain behind the task that knows what was sent."""
    return plan.each_step(lambda step: _fed_back(step, context, config))


def _fed_back(step: Step, context: Context, config: Config) -> Step:
    changes: dict[str, list[Task]] = {}
    seen: set[str] = set()
    for task in step:
        chain: list[Task] = [task]
        if isinstance(task.op, Encode) and task.op.tensor not in seen:
            tensor = task.op.tensor
            seen.add(tensor)
            op = Compensate(tensor, context.numel(tensor), config.decay)
            before = Task(f"compensate.{tensor}", op, COMPUTE, task.after, role=task.role, group=task.group)
            chain = [before, replace(task, after=(before.name,))]
        if task.op.knows_sent:
            chain.append(_retain(task))
        if len(chain) > 1:
            changes[task.name] = chain
    return step.replace(changes)


def _retain(task: Task) -> Task:
    tensors: Sequence[str] = task.op.tensors
    op = Retain(tensors[0], task.op)
    return Task(f"retain.{tensors[0]}", op, COMPUTE, (task.name,), role=task.role, group=task.group)


technique = Technique(
    name="error-feedback",
    slot=Slot.FEEDBACK,
    rewrite=rewrite,
    source="arXiv:1901.09847",
    lossless=True,
    config=Config,
    needs=ALL_FORMS - {Form.DENSE},
)
