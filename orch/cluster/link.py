"""A link of a cluster: point-to-point costs, measurements of whole collectives, or both; and the bands and sources of
either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from orch.cluster.algorithms import factors, forms, one_level, two_levels
from orch.cluster.basis import PER_BYTE_BAND, START_UP_BAND, Basis, Kind
from orch.cluster.collectives import Level
from orch.cluster.curves import Curve, Fastest, Number
from orch.cluster.node import Node, Pace
from orch.cluster.sharing import STOLEN
from orch.cluster.span import Span
from orch.cluster.two_level import Network


@dataclass(frozen=True, slots=True)
class Measured:
    """A collective as it was measured on one group: a line `T = a + b n` or a table, with the sizes it covers."""

    collective: str
    span: Span
    curve: Curve
    algorithm: str = "ring"
    kind: Kind = "fitted"
    source: str = ""
    sizes: tuple[float, float] | None = None
    evidence: tuple[str, ...] = ()
    # The same collective timed in other ways (`sharing.WAYS`).
    ways: tuple[tuple[str, Curve], ...] = ()
    # What the link was held to meanwhile, in bytes a second; None: nobody said.
    rate_bytes_per_s: float | None = None

    def on(self, collective: str, span: Span) -> Curve:
        """Return the cost of `collective` on `span`: as measured, or carried there by the counts of the algorithm's
        closed form.

        MG-WFBP section 6: alpha and beta are solved from `T = a + b n` at one size and the closed form is evaluated at
        another. The same counts carry a table, knee by knee. The reduction of the measured all-reduce stays inside
        beta.
        """
        if (collective, span) == (self.collective, self.span):
            return self.curve
        messages, sent = factors(self.collective, self.algorithm, self.span)
        new_messages, new_sent = factors(collective, self.algorithm, span)
        return self.curve.scaled(new_messages / messages, new_sent / sent)

    def in_way(self, way: str, factor: Number) -> Measured:
        """Return this measurement as it was timed in another way; where it was not, every time multiplied by `factor`."""
        found = dict(self.ways).get(way)
        return replace(self, curve=self.curve.scaled(factor, factor) if found is None else found, ways=())

    def scaled(self, start_up: Number, per_byte: Number) -> Measured:
        """Return this measurement with its start-ups and slopes multiplied, in every way."""
        ways = tuple((way, curve.scaled(start_up, per_byte)) for way, curve in self.ways)
        return replace(self, curve=self.curve.scaled(start_up, per_byte), ways=ways)

    def at_rate(self, rate_bytes_per_s: float) -> Measured:
        """Return this measurement as a link of another rate would have shown it: the wire takes more or less, by the bytes
        that pass in the algorithm's closed form, and all else as long. What compute loses stays: it is work on messages.

        Exact where wire and software follow one another; where a fast wire hid behind the software, too long by what it hid.
        """
        if self.rate_bytes_per_s is None or self.rate_bytes_per_s == rate_bytes_per_s:
            return self
        _, sent = factors(self.collective, self.algorithm, self.span)
        more = sent * (1.0 / rate_bytes_per_s - 1.0 / self.rate_bytes_per_s)
        sizes = {*(self.sizes or ()), *(float(knee) for knee, _ in self.curve.knees)}

        def moved(curve: Curve) -> Curve:
            if len(sizes) < 2:
                return replace(curve, per_byte_s=max(0.0, curve.per_byte_s + more))
            return Curve.through({size: max(0.0, curve.seconds(size) + more * size) for size in sizes})

        return replace(
            self,
            curve=moved(self.curve),
            kind="fitted",
            source=f"{self.source}; carried to another rate",
            ways=tuple((way, curve if way == STOLEN else moved(curve)) for way, curve in self.ways),
            rate_bytes_per_s=rate_bytes_per_s,
        )

    def times(self, span: Span) -> float:
        """Return by which factor `span` lies beyond (or below) the measured group, at least 1."""
        return max(span.size / self.span.size, self.span.size / span.size)

    def level(self) -> Level:
        """Return alpha and beta solved from this measurement; beta from the slope of large messages."""
        messages, sent = factors(self.collective, self.algorithm, self.span)
        slope = self.curve.per_byte_s + sum(change for _, change in self.curve.knees)
        return Level(self.curve.start_up_s / messages, slope / sent)


@dataclass(frozen=True, slots=True)
class Link:
    """One level of a cluster's network. `level` is None where only whole collectives were measured.

    `usual`: what an emulated node gets that is not unequal; None: what point-to-point costs say.
    """

    level: Level | None = None
    per_node: bool = True
    algorithm: str = "ring"
    measured: tuple[Measured, ...] = ()
    kind: Kind = "nameplate"
    source: str = ""
    bands: tuple[float | None, float | None] = (None, None)
    evidence: tuple[str, ...] = ()
    usual: Node | None = None

    @staticmethod
    def from_tables(
        tables: Mapping[str, Mapping[float, float]],
        span: Span,
        source: str,
        algorithm: str = "ring",
        ways: Mapping[str, Mapping[str, Mapping[float, float]]] | None = None,
    ) -> Link:
        """Return a link known by measured tables, as a run's warm-up makes them: collective -> bytes -> seconds on `span`.

        `ways` holds, by way, such tables of the same collectives. A collective without a table is solved from the
        all-reduce's. Raises OrchError for unknown names, ValueError for a table of fewer than two sizes.
        """
        measured = []
        for collective, seconds in tables.items():
            forms(collective, algorithm)
            sizes = (min(seconds, default=0.0), max(seconds, default=0.0))
            curve = Curve.through(seconds)
            others = tuple(
                (way, Curve.through(found[collective])) for way, found in (ways or {}).items() if collective in found
            )
            measured.append(Measured(collective, span, curve, algorithm, "measured", source, sizes, ways=others))
        return Link(None, span.per_node > 1, algorithm, tuple(measured), "measured", source)

    def point_to_point(self) -> Level:
        """Return alpha, beta and gamma of one message: as given, or solved from the measured collective on the largest
        group.
        """
        return self.level if self.level is not None else max(self.measured, key=lambda found: found.span.size).level()

    def chosen(self, collective: str, span: Span) -> Measured | None:
        """Return the measurement that speaks for `collective` on `span`: its own, the nearest in size; without alpha
        and beta another's, best an all-reduce.
        """
        same = [found for found in self.measured if found.collective == collective]
        if not same and self.level is None:
            same = [found for found in self.measured if found.collective == "all-reduce"] or list(self.measured)
        return min(same, key=lambda found: found.times(span), default=None)

    def curve(self, collective: str, span: Span, algorithm: str | None, intra: Link | None) -> Curve | Fastest:
        """Return the cost of a collective on a group that needs this link; `intra` is the inner link where this one
        joins nodes.
        """
        found = self.chosen(collective, span)
        if found is not None and algorithm in (None, found.algorithm):
            return found.on(collective, span)
        name = algorithm or self.algorithm
        mine = self.point_to_point()
        if span.nodes == 1 or span.per_node == 1:
            return one_level(collective, name, mine, span.size)
        if intra is None:
            raise ValueError("a group of several ranks on several nodes needs the inner link as well")
        return two_levels(collective, name, Network(intra.point_to_point(), mine, span, self.per_node))

    def basis(self, collective: str, span: Span, nbytes: float | None = None) -> Basis:
        """Return what the cost of a collective on `span` (of messages up to `nbytes`) rests on."""
        found = self.chosen(collective, span)
        if found is None:
            return Basis(self.kind, 1.0, self.source)
        times = found.times(span)
        if found.sizes is not None and nbytes is not None:
            times = max(times, nbytes / found.sizes[1])
        return Basis(found.kind, times, found.source or self.source)

    def band(self, basis: Basis) -> tuple[float, float]:
        """Return the relative half widths of start-up and bytes: the file's, else the default of the kind; wider where
        extrapolated.
        """
        start_up, per_byte = self.bands
        start_up = START_UP_BAND[basis.kind] if start_up is None else start_up
        per_byte = PER_BYTE_BAND[basis.kind] if per_byte is None else per_byte
        return basis.widened(start_up), basis.widened(per_byte)

    def slowed(self, pace: Pace) -> Link:
        """Return this link for a group with an unequal node. Whole collectives stay: they were measured with it."""
        if self.level is None or pace == Pace() or self.kind == "free":
            return self
        level = self.level
        later, longer = level.alpha_s + pace.lag_s, level.beta_s_per_byte / pace.rate
        return replace(self, level=Level(later, longer, level.gamma_s_per_byte))

    def node(self, devices_per_node: int) -> Node:
        """Return the node that this link, joining nodes, makes of each that is not unequal."""
        if self.usual is not None:
            return self.usual
        beta = float(self.point_to_point().beta_s_per_byte)
        rate = None if beta == 0.0 else (1 if self.per_node else devices_per_node) / beta
        return Node(rate, rate)

    def held_to(self, usual: Node | None) -> Link:
        """Return this link of nodes whose `usual` one was held to its rate while the link was measured."""
        rate = None if usual is None else usual.rate_bytes_per_s
        measured = tuple(replace(found, rate_bytes_per_s=rate) for found in self.measured)
        return replace(self, measured=measured, usual=usual)

    def scaled(self, start_up: Number, per_byte: Number) -> Link:
        """Return this link with every start-up and every byte (sent or reduced) costing that many times as much."""
        level = self.level
        if level is not None:
            level = Level(level.alpha_s * start_up, level.beta_s_per_byte * per_byte, level.gamma_s_per_byte * per_byte)
        measured = tuple(found.scaled(start_up, per_byte) for found in self.measured)
        return replace(self, level=level, measured=measured)

    def with_algorithm(self, name: str) -> Link:
        """Return this link, and what was measured on it, with another algorithm."""
        measured = tuple(replace(found, algorithm=name) for found in self.measured)
        return replace(self, algorithm=name, measured=measured)

    def in_way(self, way: str, factor: Number) -> Link:
        """Return this link with collectives as they were timed in another way, else `factor` times as long."""
        measured = tuple(found.in_way(way, factor) for found in self.measured)
        return replace(self.scaled(factor, factor), measured=measured)


@dataclass(frozen=True, slots=True)
class Links:
    """The two levels: inside a node and between nodes; None where nobody described it."""

    intra: Link | None = None
    inter: Link | None = None


FREE = Link(Level(), kind="free", source="communication set free to find the ceiling")
