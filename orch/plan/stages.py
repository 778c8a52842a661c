"""Operations of a pipeline: a rank computes one stage of the model, micro-batch after micro-batch, and hands over what leaves it.

All micro-batches go forward, then all go back (GPipe, Huang et al., NeurIPS 2019). Between two stages activations go one way and
their gradients the other, in a group of both ranks. The loss is computed where the last stage is, and told to the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from orch.plan.buffers import Buffer, Segment
from orch.plan.operations import Backward, Collective, Compute, Executor, cut_s

if TYPE_CHECKING:
    from orch.cluster import Cluster, Span
    from orch.plan.experts import Rows

PIPELINE = "pipeline"
"""What a pipeline is called where a mixture would have a name."""
ACTIVATIONS, GRADIENTS, LOSS = "activations", "gradients", "loss"


class Stage(Protocol):
    """The stage of this rank as it runs in one step."""

    def enter(self) -> None: ...

    def forward(self, number: int) -> None: ...

    def backward(self, number: int, ready: tuple[str, ...]) -> None: ...

    def take_loss(self) -> None: ...


class StageExecutor(Executor, Protocol):
    """What the tasks of a pipeline ask of the runtime."""

    def layer(self, name: str) -> Stage:
        """Return the stage of this rank."""

    def exchange(self, op: Rows) -> None:
        """Launch `op`, in plan order; return at once."""


def _stage(executor: Executor) -> Stage:
    return cast(StageExecutor, executor).layer(PIPELINE)


@dataclass(frozen=True, slots=True)
class Enter(Compute):
    """Be ready for what comes from the stage before: the batch is known. It costs nothing."""

    kind: ClassVar[str] = "enter"
    in_layer: ClassVar[bool] = True

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        return 0.0

    def run(self, executor: Executor) -> None:
        _stage(executor).enter()


@dataclass(frozen=True, slots=True)
class StageForward(Compute):
    """Parts `first` to `last` of the model over micro-batch `number` of `micro_batches`. `flops`, `moved_bytes` and `seconds` are
    those of the whole batch; each micro-batch starts `kernels` kernels.
    """

    kind: ClassVar[str] = "stage_forward"
    in_layer: ClassVar[bool] = True
    first: int = 0
    last: int = 1
    number: int = 0
    micro_batches: int = 1
    kernels: int = 1

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        return cut_s(self, 1 / self.micro_batches, self.kernels, cluster)

    def run(self, executor: Executor) -> None:
        _stage(executor).forward(self.number)


@dataclass(frozen=True, slots=True)
class StageBackward(Backward):
    """Backward of `StageForward`. The gradients of the stage's parameters, `ready`, exist after its last micro-batch."""

    kind: ClassVar[str] = "stage_backward"
    in_layer: ClassVar[bool] = True
    number: int = 0
    micro_batches: int = 1
    kernels: int = 1

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        return cut_s(self, 1 / self.micro_batches, self.kernels, cluster)

    def run(self, executor: Executor) -> None:
        _stage(executor).backward(self.number, self.ready)


@dataclass(frozen=True, slots=True)
class HandOver(Collective):
    """What the rank at place `root` of the group has, to all others of it: `part` says what, `number` of which micro-batch, and
    `link` behind which stage it goes over.
    """

    kind: ClassVar[str] = "hand_over"
    in_layer: ClassVar[bool] = True
    part: str = ACTIVATIONS
    number: int = 0
    link: int = 0
    root: int = 0
    module: str = field(default=PIPELINE, metadata={"unsaid": True})

    @staticmethod
    def buffer_of(name: str, numel: int, dtype: str) -> Buffer:
        """Return the payload of `numel` items; it serves no gradient."""
        return Buffer(name, (Segment(name, numel, dtype, ""),))

    def seconds_for(self, nbytes: float, cluster: Cluster, span: Span) -> float:
        seconds: float = (span.size - 1) * cluster.point_to_point_s(nbytes, span)
        return seconds

    def wire_bytes(self, span: Span) -> float:
        return (span.size - 1) / span.size * self.nbytes

    def run(self, executor: Executor) -> None:
        cast(StageExecutor, executor).exchange(self)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class TakeLoss(Compute):
    """Go on with the loss of the last stage; it costs nothing but the wait."""

    kind: ClassVar[str] = "take_loss"

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        return 0.0

    def run(self, executor: Executor) -> None:
        _stage(executor).take_loss()
