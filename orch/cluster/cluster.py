"""A cluster as a value: what its collectives and its devices cost, what that rests on, and variants of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from orch.cluster.basis import Bands, Basis
from orch.cluster.curves import Curve, Fastest, Number
from orch.cluster.device import Device
from orch.cluster.link import FREE, Link, Links
from orch.cluster.node import Node, pace_of
from orch.cluster.sharing import Overhead, Sharing
from orch.cluster.span import Span, span_of
from orch.errors import OrchError

_HOW = {
    "intra": "links: {intra: {alpha: 10us, bandwidth: 10GB/s, source: ...}}",
    "inter": "links: {inter: {alpha: 50us, bandwidth: 10Gbit, per: node, source: ...}}",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a cluster is. Ranks are numbered node by node. Costs are seconds; sizes bytes, floats or arrays that
    broadcast.

    Every cost method takes the payload of ONE rank (all-gather: the full result; all-to-all: all that one rank sends)
    and the `Span` of the group, costs 0 for one rank or no bytes, and raises OrchError E301 where a link it needs was
    never described.
    """

    name: str
    nodes: int
    devices_per_node: int
    device: Device
    links: Links = field(default_factory=Links)
    speed: Mapping[int, float] = field(default_factory=dict, hash=False)
    jitter: float = 0.0
    sharing: Sharing | None = None
    overhead: Overhead | None = None
    # By kind of operation of a technique (`acp-sgd encode`): the seconds it takes, over those that its own formula says.
    operations: Mapping[str, Curve] = field(default_factory=dict, hash=False)
    about: str = ""
    unequal: Mapping[int, Node] = field(default_factory=dict, hash=False)
    labels: tuple[Mapping[str, str], ...] = field(default=(), hash=False)  # of every node, where any is asked for
    _curves: dict[tuple[str, Span, str | None], Curve | Fastest] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def world_size(self) -> int:
        """Number of ranks: one a device."""
        return self.nodes * self.devices_per_node

    @property
    def world(self) -> Span:
        """The span of all ranks."""
        return self._paced(Span(self.world_size, self.nodes, self.devices_per_node), range(self.world_size))

    def span(self, ranks: Sequence[int] | None = None) -> Span:
        """Return where `ranks` (default: all) sit. Raises OrchError for a rank that does not exist or comes twice."""
        if ranks is None:
            return self.world
        return self._paced(span_of(ranks, self.devices_per_node, self.world_size), ranks)

    def _paced(self, span: Span, ranks: Sequence[int]) -> Span:
        """Return the span with the pace of its slowest node, where nodes are unequal and several meet."""
        if not self.unequal or span.nodes == 1 or self.links.inter is None:
            return span
        members = sorted({rank // self.devices_per_node for rank in ranks})
        return span._replace(pace=pace_of(map(self.node, members), self.links.inter.node(self.devices_per_node)))

    def node(self, number: int) -> Node:
        """Return how a node stands in the network. Raises OrchError where nobody described the network.

        Its speed is that of its ranks; E306 where they differ, for a node is one machine.
        """
        first = number * self.devices_per_node
        speeds = {self.speed.get(rank, 1.0) for rank in range(first, first + self.devices_per_node)}
        if len(speeds) > 1:
            text = f"cluster {self.name}: speed differs among the ranks of node {number}"
            raise OrchError(text, code="E306", hint="give all ranks of a node one speed: unequal: {0: {speed: 0.5}}")
        if number in self.unequal:
            found = self.unequal[number]
        else:
            whole = Span(self.world_size, self.nodes, self.devices_per_node)
            found = self._described("inter", whole).node(self.devices_per_node) if self.nodes > 1 else Node()
        return replace(found, speed=speeds.pop())

    @property
    def uneven(self) -> bool:
        """Whether some rank computes faster or slower than the others."""
        return any(factor != 1.0 for factor in self.speed.values())

    def speeds(self) -> list[float]:
        """Return the speed factor of every rank, 1.0 being the device's own speed: compute takes 1/speed as long."""
        factors = [1.0] * self.world_size
        for rank, factor in self.speed.items():
            factors[rank] = factor
        return factors

    # --- costs --------------------------------------------------------------------------------------------------------

    def curve(self, collective: str, span: Span, algorithm: str | None = None) -> Curve | Fastest:
        """Return seconds as a function of bytes; `.start_up_s` is the `a` that planners weigh. `algorithm` overrides
        the cluster file's.
        """
        key = (collective, span, algorithm)
        found = self._curves.get(key)
        if found is None:
            found = self._curves[key] = self._curve(collective, span, algorithm)
        return found

    def _curve(self, collective: str, span: Span, algorithm: str | None) -> Curve | Fastest:
        if span.size == 1:
            return Curve()
        link = self._link(span)
        crosses = span.nodes > 1 and span.per_node > 1
        inner = self.links.intra
        if crosses and inner is None and (link.chosen(collective, span) is None or algorithm is not None):
            self._described("intra", span)
        return link.curve(collective, span, algorithm, inner)

    def all_reduce_s(self, nbytes: Number, span: Span, algorithm: str | None = None) -> Number:
        """Return seconds of an all-reduce of `nbytes` a rank."""
        return self.curve("all-reduce", span, algorithm).seconds(nbytes)

    def reduce_scatter_s(self, nbytes: Number, span: Span, algorithm: str | None = None) -> Number:
        """Return seconds of a reduce-scatter of `nbytes` a rank (the full vector)."""
        return self.curve("reduce-scatter", span, algorithm).seconds(nbytes)

    def all_gather_s(self, nbytes: Number, span: Span, algorithm: str | None = None) -> Number:
        """Return seconds of an all-gather whose full result has `nbytes`."""
        return self.curve("all-gather", span, algorithm).seconds(nbytes)

    def all_to_all_s(self, nbytes: Number, span: Span, algorithm: str | None = None) -> Number:
        """Return seconds of an all-to-all in which every rank sends `nbytes` in all."""
        return self.curve("all-to-all", span, algorithm).seconds(nbytes)

    def broadcast_s(self, nbytes: Number, span: Span, algorithm: str | None = None) -> Number:
        """Return seconds of a broadcast of `nbytes`."""
        return self.curve("broadcast", span, algorithm).seconds(nbytes)

    def reduce_s(self, nbytes: Number, span: Span, algorithm: str | None = None) -> Number:
        """Return seconds of a reduce of `nbytes` to one rank."""
        return self.curve("reduce", span, algorithm).seconds(nbytes)

    def point_to_point_s(self, nbytes: Number, span: Span) -> Number:
        """Return seconds of one message between two ranks of `span`: alpha + n beta of the link between them."""
        if span.size == 1:
            return 0.0 * nbytes
        level = self._link(span).point_to_point()
        return Curve(level.alpha_s, level.beta_s_per_byte).seconds(nbytes)

    def _link(self, span: Span) -> Link:
        return self._described("inter" if span.nodes > 1 else "intra", span).slowed(span.pace)

    def _described(self, which: str, span: Span) -> Link:
        link = self.links.inter if which == "inter" else self.links.intra
        if link is None:
            hint = f"describe it, for example {_HOW[which]}, or name a described cluster (orch list clusters)"
            raise OrchError(
                f"cluster {self.name}: links.{which} is not described, and {span} need it", code="E301", hint=hint
            )
        return link

    # --- what it rests on ---------------------------------------------------------------------------------------------

    def basis(self, span: Span | None = None, nbytes: float | None = None, collective: str = "all-reduce") -> Basis:
        """Return what communication on `span` (default: all ranks) with messages up to `nbytes` rests on."""
        span = self.world if span is None else span
        return Basis("free") if span.size == 1 else self._link(span).basis(collective, span, nbytes)

    def bands(self, span: Span | None = None, nbytes: float | None = None) -> Bands:
        """Return the relative bands of start-ups, bytes and compute, from which a prediction draws its lowest and
        highest time.
        """
        span = self.world if span is None else span
        start_up, per_byte = (0.0, 0.0) if span.size == 1 else self._link(span).band(self.basis(span, nbytes))
        return Bands(start_up, per_byte, self.device.relative_band())

    # --- variants -----------------------------------------------------------------------------------------------------

    def with_links(self, intra: Link | None = None, inter: Link | None = None) -> Cluster:
        """Return this cluster with the given links in place of its own; None keeps what is there."""
        return replace(self, links=Links(intra or self.links.intra, inter or self.links.inter))

    def with_algorithm(self, name: str) -> Cluster:
        """Return this cluster with collectives carried beyond what was measured by the counts of another algorithm."""
        intra, inter = (link and link.with_algorithm(name) for link in (self.links.intra, self.links.inter))
        return replace(self, links=Links(intra, inter))

    def communication_free(self) -> Cluster:
        """Return this cluster with links that cost nothing, and whose collectives nobody has to launch: the ceiling."""
        overhead = self.overhead and replace(self.overhead, collective_s=0.0)
        return replace(self, links=Links(FREE, FREE), sharing=None, overhead=overhead)

    def in_way(self, way: str) -> Cluster:
        """Return this cluster with collectives costing what they do in one of `sharing.WAYS`."""
        factor = self.sharing.factor(way) if self.sharing is not None else 1.0
        intra, inter = (link and link.in_way(way, factor) for link in (self.links.intra, self.links.inter))
        return replace(self, links=Links(intra, inter))

    def scaled(self, start_up: Number = 1.0, per_byte: Number = 1.0, compute: Number = 1.0) -> Cluster:
        """Return this cluster with start-ups, bytes and compute costing that many times as much; arrays make a variant
        an entry.
        """
        intra, inter = (link and link.scaled(start_up, per_byte) for link in (self.links.intra, self.links.inter))
        return replace(self, links=Links(intra, inter), device=self.device.scaled(compute))
