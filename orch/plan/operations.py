"""Operations: what a task does. Each says two things, and nothing else does: what it costs and how it runs.

The simulator calls `cost_s(cluster, span)`, the runtime calls `run(executor)`. An operation is plain frozen data; the
module that defines it imports neither torch nor numpy (kernels are imported inside `run`). A class that adds no field
to its base needs no decorator of its own: it inherits all of a dataclass, and an empty `__slots__` keeps it so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

from orch.plan.buffers import Buffer

if TYPE_CHECKING:
    from orch.cluster import Cluster, Span

Op = TypeVar("Op")


class Executor(Protocol):
    """What an operation may ask of the runtime. Tensors are `Any` here: this module does not know torch."""

    rank: int
    world_size: int

    def gradient(self, tensor: str) -> Any:
        """Return the local gradient of parameter `tensor`, in the parameter's shape; writable in place."""

    def set_gradient(self, tensor: str, value: Any) -> None:
        """Make `value` the gradient that the update will use."""

    def segment(self, name: str) -> Any:
        """Return segment `name` of this step's buffers as a flat view [numel], in the segment's dtype."""

    def gathered(self, name: str) -> list[Any]:
        """Return segment `name` as every rank of the group sent it: a flat view [numel] per rank, in rank order."""

    def state(self, owner: str, name: str, make: Callable[[], Any]) -> Any:
        """Return the tensor kept under (owner, name) between steps and in checkpoints; `make` creates it the first
        time.
        """

    def generator(self, owner: str) -> Any:
        """Return a generator that has the same seed on every rank, kept between steps and in checkpoints."""

    def collective(self, op: Collective) -> None:
        """Launch `op` on its buffer, in plan order; return at once."""

    def update(self, tensors: tuple[str, ...]) -> None:
        """Apply the optimiser to these parameters."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Base of all operations."""

    kind: ClassVar[str] = "operation"
    # Runs on the device, so a slow rank stretches it; collectives are stretched by waiting instead.
    on_device: ClassVar[bool] = True
    # After it has run, `subtract_sent` can tell which part of the local gradient was sent: feedback stands behind it.
    knows_sent: ClassVar[bool] = False
    # Runs while a mixture-of-experts layer has handed over to the engine, and at no other time.
    in_layer: ClassVar[bool] = False

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        """Return seconds on `cluster` when the task's group covers `span`; floats, or arrays when the cluster holds
        arrays.
        """
        raise TypeError(f"{type(self).__name__} does not say what it costs")

    def run(self, executor: Executor) -> None:
        """Do it, on this rank."""
        raise TypeError(f"{type(self).__name__} does not say how it runs")

    def subtract_sent(self, executor: Executor, accumulated: Any) -> None:
        """Subtract from `accumulated` (the gradient that was encoded, in the parameter's shape, writable in place) what
        of it reaches the optimiser; what is left is the error that feedback may keep.
        """
        raise TypeError(f"{type(self).__name__} does not say what was sent")

    def subtract_sent_s(self, cluster: Cluster, span: Span) -> float:
        """Return the seconds that `subtract_sent` takes."""
        raise TypeError(f"{type(self).__name__} does not say what it costs to know what was sent")

    @property
    def nbytes(self) -> int:
        """Payload: the bytes a rank hands over."""
        return 0

    def wire_bytes(self, span: Span) -> float:
        """Bytes that a rank sends over its link."""
        return 0.0

    @property
    def state_bytes(self) -> int:
        """Memory that this operation keeps between steps, in bytes."""
        return 0

    @property
    def tensors(self) -> tuple[str, ...]:
        """The gradients that this operation serves."""
        return ()

    @property
    def works_for(self) -> Operation | None:
        """The operation whose method does this one's work, if there is one: what it takes is that one's."""
        return None


@dataclass(frozen=True, slots=True)
class Compute(Operation):
    """Work of the model itself: `flops` and `moved_bytes` in all, or `seconds` where they were measured."""

    kind: ClassVar[str] = "compute"
    module: str
    flops: float
    moved_bytes: float
    dtype: str = "fp32"
    seconds: float | None = None

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        if self.seconds is not None:
            return self.seconds
        seconds: float = cluster.device.compute_s(self.flops, self.moved_bytes, self.dtype)
        return seconds

    def run(self, executor: Executor) -> None:
        """Nothing: the model's own forward and backward do it, and the runtime's hooks stamp it."""


@cache
def _names_of(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def changed(op: Op, **changes: Any) -> Op:
    """Return `op` with some fields changed, as `dataclasses.replace` does it, which takes several times as long; for operations
    that look at nothing when they are made.
    """
    kind: Any = type(op)
    new: Op = object.__new__(kind)
    for name in _names_of(kind):
        object.__setattr__(new, name, changes[name] if name in changes else getattr(op, name))
    return new


def part_s(whole_s: float, share: float, start_up_s: float, pieces: int = 1) -> float:
    """Return the seconds of a share of work that takes `whole_s`, with `start_up_s` of it to start its kernels: a part starts
    all of them, once a piece.
    """
    return whole_s * share + start_up_s * (pieces - share)


def cut_s(op: Compute, share: float, kernels: int, cluster: Cluster, pieces: int = 1) -> float:
    """Return the seconds of a share of `op`, as `part_s` does; whole it takes what was measured, or the start-ups of its
    `kernels` and what they compute.
    """
    start_up_s = kernels * cluster.device.launch_s
    whole_s = op.seconds
    if whole_s is None:
        whole_s = start_up_s + cluster.device.compute_s(op.flops, op.moved_bytes, op.dtype)
    return part_s(whole_s, share, start_up_s, pieces)


class Forward(Compute):
    """Forward of one module that owns parameters, with what follows it up to the next such module."""

    __slots__ = ()
    kind: ClassVar[str] = "forward"


@dataclass(frozen=True, slots=True)
class Backward(Compute):
    """Backward up to the moment when the gradients in `ready` exist."""

    kind: ClassVar[str] = "backward"
    ready: tuple[str, ...] = ()

    @property
    def tensors(self) -> tuple[str, ...]:
        return self.ready


@dataclass(frozen=True, slots=True)
class Update(Operation):
    """The optimiser's step over some parameters: a few streaming passes over `numel` items."""

    kind: ClassVar[str] = "update"
    parameters: tuple[str, ...]
    numel: int
    passes: int = 5
    seconds: float | None = None

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        if self.seconds is not None:
            return self.seconds
        seconds: float = cluster.device.compute_s(0.0, 4.0 * self.passes * self.numel, "fp32")
        return seconds

    def run(self, executor: Executor) -> None:
        executor.update(self.parameters)

    @property
    def tensors(self) -> tuple[str, ...]:
        return self.parameters

    def of(self, parameters: tuple[str, ...], numel: int) -> Update:
        """Return the share of this update that concerns `parameters`."""
        seconds = None if self.seconds is None else self.seconds * numel / max(1, self.numel)
        return replace(self, parameters=parameters, numel=numel, seconds=seconds)


@dataclass(frozen=True, slots=True)
class Fixed(Operation):
    """Work of known length that no run does: reading a batch, copying it, what another engine adds. For plans only."""

    kind: ClassVar[str] = "fixed"
    on_device: ClassVar[bool] = False
    what: str
    seconds: float

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        return self.seconds


@dataclass(frozen=True, slots=True)
class Encode(Operation):
    """Base of what turns the local gradient of one tensor into a payload. Feedback compensates the gradient before the
    first one of a tensor.
    """

    kind: ClassVar[str] = "encode"
    tensor: str

    @property
    def tensors(self) -> tuple[str, ...]:
        return (self.tensor,)


@dataclass(frozen=True, slots=True)
class Decode(Operation):
    """Base of what turns the aggregated payload of one tensor into the gradient that the update uses."""

    kind: ClassVar[str] = "decode"
    tensor: str

    @property
    def tensors(self) -> tuple[str, ...]:
        return (self.tensor,)


@dataclass(frozen=True, slots=True)
class Collective(Operation):
    """A collective over one buffer. Fusing joins buffers; everything else about it stays.

    One that serves gradients (`tensors`) is for techniques of data-parallel training to compress, merge and move; one
    that serves none carries activations and belongs to the layer it stands in.
    """

    kind: ClassVar[str] = "collective"
    on_device: ClassVar[bool] = False
    buffer: Buffer

    @property
    def rests_on(self) -> str:
        """What `nbytes` rests on where only the data know how many they are."""
        return ""

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes

    @property
    def tensors(self) -> tuple[str, ...]:
        return self.buffer.tensors

    def run(self, executor: Executor) -> None:
        executor.collective(self)

    def fuse(self, others: tuple[Self, ...], name: str) -> Self:
        """Return one collective over the segments of `self` and `others`, in order."""
        segments = tuple(segment for op in (self, *others) for segment in op.buffer.segments)
        return replace(self, buffer=Buffer(name, segments, self.buffer.pad_to))

    def seconds_for(self, nbytes: float, cluster: Cluster, span: Span) -> float:
        """Return the seconds of this kind of collective over `nbytes` of payload; broadcasts over arrays."""
        raise TypeError(f"{type(self).__name__} does not say what it costs")

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        return self.seconds_for(self.nbytes, cluster, span)


class AllReduce(Collective):
    """Mean over the group, left on every rank."""

    __slots__ = ()
    kind: ClassVar[str] = "all_reduce"

    def seconds_for(self, nbytes: float, cluster: Cluster, span: Span) -> float:
        seconds: float = cluster.all_reduce_s(nbytes, span)
        return seconds

    def wire_bytes(self, span: Span) -> float:
        return 2.0 * (span.size - 1) / span.size * self.nbytes


class ReduceScatter(Collective):
    """Mean over the group; each rank keeps its own 1/p of the buffer."""

    __slots__ = ()
    kind: ClassVar[str] = "reduce_scatter"

    def seconds_for(self, nbytes: float, cluster: Cluster, span: Span) -> float:
        seconds: float = cluster.reduce_scatter_s(nbytes, span)
        return seconds

    def wire_bytes(self, span: Span) -> float:
        return (span.size - 1) / span.size * self.nbytes


class AllGatherShards(Collective):
    """The inverse of a reduce-scatter: each rank hands over its 1/p, and every rank ends with the whole buffer.

    The buffer is padded to a multiple of the group (`pad_to`), so that all shards are equal.
    """

    __slots__ = ()
    kind: ClassVar[str] = "all_gather"

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes // self.buffer.pad_to

    def seconds_for(self, nbytes: float, cluster: Cluster, span: Span) -> float:
        seconds: float = cluster.all_gather_s(nbytes * span.size, span)
        return seconds

    def wire_bytes(self, span: Span) -> float:
        return float((span.size - 1) * self.nbytes)


class AllGather(Collective):
    """Each rank hands over a whole buffer, and every rank ends with all of them."""

    __slots__ = ()
    kind: ClassVar[str] = "all_gather"

    def seconds_for(self, nbytes: float, cluster: Cluster, span: Span) -> float:
        seconds: float = cluster.all_gather_s(nbytes * span.size, span)
        return seconds

    def wire_bytes(self, span: Span) -> float:
        return float((span.size - 1) * self.nbytes)


@dataclass(frozen=True, slots=True)
class Aggregate(Collective):
    """Payloads that some exchange must still aggregate. A compressor leaves it; no finished plan holds one.

    `decode` turns the payloads of all ranks, gathered, into the gradient; an exchange that does more than gather
    understands the segments themselves.
    """

    kind: ClassVar[str] = "aggregate"
    decode: Operation


def own_work(op: Operation) -> str | None:
    """Return under which name a cluster holds what `op` was measured to take: `acp-sgd encode`, `error-feedback retain of
    acp-sgd encode`. None for compute, updates and collectives, which are measured by other means, and for what no run does.
    """
    if isinstance(op, Compute | Update | Collective | Fixed):
        return None
    name = f"{type(op).__module__.rpartition('.')[2].replace('_', '-')} {op.kind}"
    return name if op.works_for is None else f"{name} of {own_work(op.works_for)}"


def seconds_of(op: Operation, cluster: Cluster, span: Span) -> float:
    """Return the seconds of `op` as measured on `cluster`, by its own formula where it was not."""
    formula = op.cost_s(cluster, span)
    name = own_work(op) if cluster.operations else None
    measured = None if name is None else cluster.operations.get(name)
    return formula if measured is None else measured.start_up_s + measured.per_byte_s * formula
