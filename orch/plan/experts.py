"""Operations inside a mixture-of-experts layer: what one crossing of the layer, forward or backward, consists of.

A crossing moves a worker's rows (one a token and chosen expert, or one a slot of an expert) to the experts and back:
order, dispatch, gather, expert, scatter, combine, restore; backward the same way from the other end. Everything between
order and restore may be cut along *positions*: the slots of an expert where a capacity is set, the tokens of the worker
where none is. The plan states capacity and rule; real bytes are in the record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, cast

from orch.plan.buffers import Buffer, Segment
from orch.plan.chunk import Chunk, turn_s
from orch.plan.operations import Backward, Collective, Compute, Executor, Operation, changed, cut_s

if TYPE_CHECKING:
    from orch.cluster import Cluster, Span


class Layer(Protocol):
    """A mixture of experts as it runs in one step on this rank. Each call is one task; rows are its own affair."""

    def order(self, begin: int, end: int) -> None: ...

    def expert(self, chunk: Chunk, pieces: int = 1) -> None: ...

    def restore(self, begin: int, end: int) -> None: ...

    def restore_backward(self, begin: int, end: int) -> None: ...

    def expert_backward(self, chunk: Chunk, pieces: int = 1, *, last: bool) -> None: ...

    def order_backward(self, begin: int, end: int) -> None: ...

    def pack(self, op: PackRows) -> None: ...

    def unpack(self, op: UnpackRows) -> None: ...


class LayerExecutor(Executor, Protocol):
    """What the tasks of a mixture ask of the runtime beyond what all operations may ask."""

    def layer(self, name: str) -> Layer:
        """Return mixture `name` as it runs in this step."""

    def exchange(self, op: Rows) -> None:
        """Launch `op` on the rows of its layer, in plan order; return at once."""


def _layer(executor: Executor, name: str) -> Layer:
    return cast(LayerExecutor, executor).layer(name)


@dataclass(frozen=True, slots=True)
class Layout(Compute):
    """Base of what lays tokens out as rows, or adds rows up: of all tokens, or where layers are walked as a chain of those
    whose rows are at positions `begin` to `end` (nothing else: 0 to 0).
    """

    in_layer: ClassVar[bool] = True
    begin: int = field(default=0, metadata={"unsaid": True})
    end: int = field(default=0, metadata={"unsaid": True})

    def cut(self, begin: int, end: int, share: float, rows: float) -> Self:
        """Return what a `share` of the tokens and of the `rows` takes; `flops` are a product of both numbers."""
        seconds = None if self.seconds is None else self.seconds * share
        return replace(self, flops=self.flops * share * rows, moved_bytes=self.moved_bytes * share, seconds=seconds,
                       begin=begin, end=end)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Order(Layout):
    """Lay a worker's tokens out as rows, expert after expert. Where ranks share tokens: the `tokens` of which each may take
    a part, before the gate sees them (0: none may), the `rows` they make, and the `width` of both.
    """

    kind: ClassVar[str] = "order"
    tokens: int = field(default=0, metadata={"unsaid": True})
    rows: int = field(default=0, metadata={"unsaid": True})
    width: int = field(default=0, metadata={"unsaid": True})

    def run(self, executor: Executor) -> None:
        _layer(executor, self.module).order(self.begin, self.end)


@dataclass(frozen=True, slots=True)
class Restore(Layout):
    """The inverse of `Order`: each token becomes the weighted sum of its rows."""

    kind: ClassVar[str] = "restore"

    def run(self, executor: Executor) -> None:
        _layer(executor, self.module).restore(self.begin, self.end)


@dataclass(frozen=True, slots=True)
class RestoreBackward(Layout):
    """Gradients of the rows and of their weights, from those of the tokens."""

    kind: ClassVar[str] = "restore_backward"

    def run(self, executor: Executor) -> None:
        _layer(executor, self.module).restore_backward(self.begin, self.end)


@dataclass(frozen=True, slots=True)
class OrderBackward(Layout):
    """Each token's gradient is the sum of those of its rows."""

    kind: ClassVar[str] = "order_backward"

    def run(self, executor: Executor) -> None:
        _layer(executor, self.module).order_backward(self.begin, self.end)


def _chunk_s(op: Expert | ExpertBackward, cluster: Cluster) -> float:
    """Seconds of a chunk: every product starts up again, in each piece; the rest is shared out by positions."""
    return cut_s(op, (op.end - op.begin) / op.positions / op.turns, op.products, cluster, op.pieces)


@dataclass(frozen=True, slots=True)
class Expert(Compute):
    """The experts of this rank, over the rows at positions `begin` to `end` of every worker they came from.

    `flops`, `moved_bytes` and `seconds` are those of all `positions`; `products` counts the matrix products that start.
    The rows of each expert are computed in `pieces`, one after another: a kernel that waits for the device gets it in between.
    """

    kind: ClassVar[str] = "expert"
    in_layer: ClassVar[bool] = True
    positions: int = 1
    begin: int = 0
    end: int = 1
    products: int = 2
    turn: int = field(default=0, metadata={"unsaid": True})
    turns: int = field(default=1, metadata={"unsaid": True})
    pieces: int = field(default=1, metadata={"unsaid": True})

    @property
    def chunk(self) -> Chunk:
        """The rows it is about."""
        return Chunk(self.begin, self.end, self.turn, self.turns)

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        return _chunk_s(self, cluster)

    def cut(self, begin: int, end: int, *, last: bool) -> Expert:
        """Return the share of positions `begin` to `end`."""
        return changed(self, begin=begin, end=end)

    def run(self, executor: Executor) -> None:
        _layer(executor, self.module).expert(self.chunk, self.pieces)


@dataclass(frozen=True, slots=True)
class ExpertBackward(Backward):
    """Backward of `Expert`. The gradients of the experts' own parameters, `ready`, exist after the last chunk."""

    kind: ClassVar[str] = "expert_backward"
    in_layer: ClassVar[bool] = True
    positions: int = 1
    begin: int = 0
    end: int = 1
    products: int = 4
    turn: int = field(default=0, metadata={"unsaid": True})
    turns: int = field(default=1, metadata={"unsaid": True})
    pieces: int = field(default=1, metadata={"unsaid": True})

    @property
    def chunk(self) -> Chunk:
        """The rows it is about."""
        return Chunk(self.begin, self.end, self.turn, self.turns)

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        return _chunk_s(self, cluster)

    def cut(self, begin: int, end: int, *, last: bool) -> ExpertBackward:
        """Return the share of positions `begin` to `end`; the `last` chunk makes the gradients."""
        return changed(self, begin=begin, end=end, ready=self.ready if last else ())

    def run(self, executor: Executor) -> None:
        _layer(executor, self.module).expert_backward(self.chunk, self.pieces, last=bool(self.ready))


@dataclass(frozen=True, slots=True)
class Rows(Collective):
    """Base of what moves rows of a layer between ranks: those at positions `begin` to `end` of `positions`.

    `ragged`: how many rows go where depends on the data. Then `nbytes` is what the rule says of a balanced layer: exact
    for what a worker hands over on the way to the experts, an expectation on the way back. `width` numbers make a row.
    """

    in_layer: ClassVar[bool] = True
    module: str = ""
    part: str = ""
    positions: int = 1
    begin: int = 0
    end: int = 1
    ragged: bool = False
    width: int = 0

    @staticmethod
    def buffer_of(name: str, numel: int, dtype: str) -> Buffer:
        """Return the payload of `numel` items; it serves no gradient."""
        return Buffer(name, (Segment(name, numel, dtype, ""),))

    def cut(self, begin: int, end: int, *, name: str) -> Self:
        """Return the share of positions `begin` to `end`, under a name of its own."""
        (whole,) = self.buffer.segments
        numel = whole.numel * (end - begin) // self.positions
        return changed(self, buffer=Rows.buffer_of(name, numel, whole.dtype), begin=begin, end=end)

    def run(self, executor: Executor) -> None:
        cast(LayerExecutor, executor).exchange(self)


WHOLE, NEAR, FAR, INSIDE, ACROSS = "whole", "near", "far", "inside", "across"


@dataclass(frozen=True, slots=True)
class AllToAll(Rows):
    """Each rank hands every other rank of the group the rows that are meant for it.

    `algorithm`: as `Cluster.curve` takes it; "": what the cluster measured. `leg`: which part of the way this task is, where
    `neighbours` ranks of the group share each node: all of it (WHOLE); the pairs on one node, or those on different ones
    (NEAR, FAR: both at once make the whole); or two hops (INSIDE the node to the rank whose place there is that of the
    rank meant, then ACROSS nodes; back in reverse). NEAR and INSIDE run in the group of the node, all others in that of
    the experts. `copies`: a row goes to so many ranks that share its expert, and comes back from each as a part of a sum. `turn`,
    `turns`: as in `Chunk`; then `nbytes` of the turns together are what one exchange hands over. `channels`: multiprocessors
    that its kernel holds, where that is another number than the cluster says; with less, bytes take longer in proportion.
    `travels`: of a thousand bytes of the buffer, those expected where only the data know how small a codec packs them; `rests_on`.
    """

    kind: ClassVar[str] = "all_to_all"
    algorithm: str = field(default="", metadata={"unsaid": True})
    leg: str = field(default=WHOLE, metadata={"unsaid": True})
    neighbours: int = field(default=1, metadata={"unsaid": True})
    copies: int = field(default=1, metadata={"unsaid": True})
    turn: int = field(default=0, metadata={"unsaid": True})
    turns: int = field(default=1, metadata={"unsaid": True})
    channels: int = field(default=0, metadata={"unsaid": True})
    travels: int = field(default=1000, metadata={"unsaid": True})
    rests_on: str = field(default="", metadata={"unsaid": True})

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes * self.travels // 1000

    @property
    def chunk(self) -> Chunk:
        """The rows it is about."""
        return Chunk(self.begin, self.end, self.turn, self.turns)

    def in_turn(self, turn: int, turns: int, *, name: str) -> AllToAll:
        """Return the share of one turn: an even one, whatever the data make of it where sizes are ragged."""
        (whole,) = self.buffer.segments
        numel = whole.numel * (turn + 1) // turns - whole.numel * turn // turns
        return replace(self, buffer=Rows.buffer_of(name, numel, whole.dtype), turn=turn, turns=turns)

    def seconds_for(self, nbytes: float, cluster: Cluster, span: Span) -> float:
        if self.channels and cluster.sharing is not None:
            nbytes = nbytes * max(1.0, cluster.sharing.held / self.channels)
        if self.turns > 1:
            seconds: float = turn_s(nbytes, self.turn, self.turns, cluster, span)
            return seconds
        seconds = _leg_s(self, nbytes, cluster, span)
        return seconds

    def wire_bytes(self, span: Span) -> float:
        if self.turns > 1:
            group = span.size // self.turns
            return float(self.nbytes) if self.turn else (group - 1) / group * self.nbytes
        if self.leg == FAR:
            return float(self.nbytes)
        size = span.nodes if self.leg == ACROSS else span.size
        return (size - 1) / size * self.nbytes


def _leg_s(op: AllToAll, nbytes: Any, cluster: Cluster, span: Span) -> Any:
    """Seconds of one leg. Direct, an all-to-all is its near pairs and then its far ones (ScheMoE, equation 16), so the far
    ones take what the near ones leave of the whole.
    """
    if op.leg not in (FAR, ACROSS):
        return cluster.all_to_all_s(nbytes, span, op.algorithm or None)
    from orch.cluster import Span
    from orch.cluster.curves import above_zero

    node = Span(op.neighbours, 1, op.neighbours)
    if op.leg == FAR:
        whole = nbytes * span.size / (span.size - op.neighbours)
        near = cluster.all_to_all_s(whole * op.neighbours / span.size, node)
        return above_zero(cluster.all_to_all_s(whole, span) - near)
    both = cluster.all_to_all_s(nbytes, span, "two-level")
    return above_zero(both - cluster.all_to_all_s(nbytes, node))


@dataclass(frozen=True, slots=True)
class RecodeRows(Operation):
    """The rows of one chunk of an exchange, `part`, change their form: before they travel or after.

    `moved_bytes` are those of all `positions`, read and written; `module`, `begin` and `end` as in `Rows`.
    """

    in_layer: ClassVar[bool] = True
    module: str
    part: str
    hidden: int
    dtype: str
    moved_bytes: float
    positions: int = 1
    begin: int = 0
    end: int = 1
    turn: int = field(default=0, metadata={"unsaid": True})
    turns: int = field(default=1, metadata={"unsaid": True})

    @property
    def chunk(self) -> Chunk:
        """The rows it is about."""
        return Chunk(self.begin, self.end, self.turn, self.turns)

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        share = (self.end - self.begin) / self.positions / self.turns
        seconds: float = cluster.device.compute_s(0.0, share * self.moved_bytes, self.dtype)
        return seconds

    def cut(self, begin: int, end: int, *, last: bool) -> Self:
        """Return the share of positions `begin` to `end`."""
        return replace(self, begin=begin, end=end)


@dataclass(frozen=True, slots=True)
class PackRows(RecodeRows):
    """Base of what writes rows in the form in which they travel."""

    kind: ClassVar[str] = "pack_rows"

    def encode(self, rows: Any) -> Any:
        """Return rows [Q, M] as they travel [Q, W]."""
        raise TypeError(f"{type(self).__name__} does not say how rows are written")

    def packed(self, rows: Any, counts: Callable[[], list[int]]) -> tuple[Any, list[int] | None]:
        """Return rows as they travel, and where only the data know them the bytes [B, 1] of each rank's part."""
        return self.encode(rows), None

    def run(self, executor: Executor) -> None:
        _layer(executor, self.module).pack(self)


@dataclass(frozen=True, slots=True)
class UnpackRows(RecodeRows):
    """Base of the inverse, when the chunk has arrived: `hidden` numbers of `dtype` a row again."""

    kind: ClassVar[str] = "unpack_rows"

    def decode(self, packed: Any) -> Any:
        """Return rows [Q, M] from what travelled [Q, W]."""
        raise TypeError(f"{type(self).__name__} does not say how rows are read")

    def unpacked(self, packed: Any, counts: Callable[[], list[int]], sizes: list[int] | None) -> Any:
        """Return rows from what travelled: of each rank's part its `counts` rows, and its bytes where these were told."""
        return self.decode(packed)

    def run(self, executor: Executor) -> None:
        _layer(executor, self.module).unpack(self)


@dataclass(frozen=True, slots=True)
class GatherRows(Rows):
    """Every rank of the group ends with the rows of all: the ranks that share each expert see the same rows."""

    kind: ClassVar[str] = "gather_rows"

    def seconds_for(self, nbytes: float, cluster: Cluster, span: Span) -> float:
        seconds: float = cluster.all_gather_s(nbytes * span.size, span)
        return seconds

    def wire_bytes(self, span: Span) -> float:
        return float((span.size - 1) * self.nbytes)


@dataclass(frozen=True, slots=True)
class ScatterRows(Rows):
    """The inverse: what the ranks that share an expert computed is added up, and each keeps its own rows."""

    kind: ClassVar[str] = "scatter_rows"

    def seconds_for(self, nbytes: float, cluster: Cluster, span: Span) -> float:
        seconds: float = cluster.reduce_scatter_s(nbytes, span)
        return seconds

    def wire_bytes(self, span: Span) -> float:
        return (span.size - 1) / span.size * self.nbytes
