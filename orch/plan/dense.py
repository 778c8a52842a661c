"""The dense work between mixtures as operations that can be cut: up to the residual stream behind attention, and from there
to the routes of each token.

Ranges are of *units*, tokens of a sample or samples of a worker's batch, whichever a chain is cut along. They run in a chain
(`orch.plan.chain`), and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, cast

from orch.plan.experts import Layer, LayerExecutor
from orch.plan.operations import Backward, Compute, Executor, part_s

if TYPE_CHECKING:
    from orch.cluster import Cluster, Span


# What a unit is.
TOKENS, SAMPLES = "tokens", "samples"


class DenseLayer(Layer, Protocol):
    """A mixture with the dense work that leads to it, as both run in one step of a chain. Each call is one task."""

    def attend(self, first: int, last: int, piece: int = 0) -> None: ...

    def gate(self, first: int, last: int, begin: int, end: int) -> None: ...

    def gate_backward(self, begin: int, end: int, ready: tuple[str, ...]) -> None: ...

    def attend_backward(self, first: int, last: int, ready: tuple[str, ...], piece: int = 0) -> None: ...


def _layer(executor: Executor, name: str) -> DenseLayer:
    return cast(DenseLayer, cast(LayerExecutor, executor).layer(name))


class _OfUnits:
    """What dense work of the units `first` to `last` is of the whole, which `flops`, `moved_bytes` and `seconds` are of."""

    __slots__ = ()
    flops: float
    moved_bytes: float
    dtype: str
    seconds: float | None
    products: int
    units: int
    first: int
    last: int
    quadratic: float = 0.0

    @property
    def share(self) -> float:
        """The share of all work. A token looks at all before it, so of the part that grows with the square units a to b have
        (b^2 - a^2) / n^2 (sp-moe brief, section 3).
        """
        linear = (self.last - self.first) / self.units
        if not self.quadratic:
            return linear
        square = (self.last**2 - self.first**2) / self.units**2
        return (1.0 - self.quadratic) * linear + self.quadratic * square

    def cost_s(self, cluster: Cluster, span: Span) -> float:
        """Seconds; whole work pays no start-ups beside its own."""
        compute = cluster.device.compute_s
        whole_s = compute(self.flops, self.moved_bytes, self.dtype) if self.seconds is None else self.seconds
        return part_s(whole_s, self.share, self.products * cluster.device.launch_s)


@dataclass(frozen=True, slots=True)
class Attend(_OfUnits, Compute):
    """Dense work of the units `first` to `last`, from the mixture before up to behind the attention that leads to `module`.

    `flops`, `moved_bytes` and `seconds` are those of all `units`, in `products` products; the share `quadratic` grows with
    the square of the units, as it does where these are tokens, each of which looks at earlier ones only. `axis` says what they
    are, `stands_for` names the plain plan's tasks. Where ranks share samples it is this `piece` of several, between the places
    at which they meet, counted in forward order from 0.
    """

    kind: ClassVar[str] = "attend"
    in_layer: ClassVar[bool] = True
    products: int = 1
    quadratic: float = 0.0
    units: int = 1
    first: int = 0
    last: int = 1
    axis: str = TOKENS
    stands_for: tuple[str, ...] = ()
    piece: int = field(default=0, metadata={"unsaid": True})

    def cut(self, first: int, last: int) -> Self:
        """Return the share of units `first` to `last`."""
        return replace(self, first=first, last=last)

    def run(self, executor: Executor) -> None:
        _layer(executor, self.module).attend(self.first, self.last, self.piece)


@dataclass(frozen=True, slots=True)
class AttendBackward(_OfUnits, Backward):
    """Backward of `Attend`; the gradients of its parameters, `ready`, exist after the chunk that runs last. Pieces are counted
    from the one that runs last.
    """

    kind: ClassVar[str] = "attend_backward"
    in_layer: ClassVar[bool] = True
    products: int = 2
    quadratic: float = 0.0
    units: int = 1
    first: int = 0
    last: int = 1
    axis: str = TOKENS
    stands_for: tuple[str, ...] = ()
    piece: int = field(default=0, metadata={"unsaid": True})

    def cut(self, first: int, last: int) -> Self:
        """Return the share of units `first` to `last`, which makes no gradient ready yet."""
        return replace(self, first=first, last=last, ready=())

    def run(self, executor: Executor) -> None:
        _layer(executor, self.module).attend_backward(self.first, self.last, self.ready, self.piece)


@dataclass(frozen=True, slots=True)
class Gate(_OfUnits, Compute):
    """What follows attention for the units `first` to `last`, token by token: the norm, and the choice of experts. Their rows
    are at positions `begin` to `end` of mixture `module`; else as `Attend`.
    """

    kind: ClassVar[str] = "gate"
    in_layer: ClassVar[bool] = True
    products: int = 1
    units: int = 1
    first: int = 0
    last: int = 1
    begin: int = 0
    end: int = 1
    stands_for: tuple[str, ...] = ()

    def cut(self, first: int, last: int, begin: int, end: int) -> Self:
        """Return the share of units `first` to `last`, whose rows are at positions `begin` to `end`."""
        return replace(self, first=first, last=last, begin=begin, end=end)

    def run(self, executor: Executor) -> None:
        _layer(executor, self.module).gate(self.first, self.last, self.begin, self.end)


@dataclass(frozen=True, slots=True)
class GateBackward(_OfUnits, Backward):
    """Backward of `Gate`; the gradients of its parameters, `ready`, exist after the chunk that runs last."""

    kind: ClassVar[str] = "gate_backward"
    in_layer: ClassVar[bool] = True
    products: int = 2
    units: int = 1
    first: int = 0
    last: int = 1
    begin: int = 0
    end: int = 1
    stands_for: tuple[str, ...] = ()

    def cut(self, first: int, last: int, begin: int, end: int) -> Self:
        """Return the share of units `first` to `last`, which makes no gradient ready yet."""
        return replace(self, first=first, last=last, begin=begin, end=end, ready=())

    def run(self, executor: Executor) -> None:
        _layer(executor, self.module).gate_backward(self.begin, self.end, self.ready)
