"""How well smaller worlds predict the largest: its collectives by carrying the others' tables, beside its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orch.cluster.sharing import BESIDE

if TYPE_CHECKING:
    from orch.cluster import Cluster, Link, Measured

QUEUED = "queued"


@dataclass(frozen=True, slots=True)
class Residual:
    """One collective of one size in the held-out world: seconds carried there from the nearest smaller one, and measured."""

    collective: str
    way: str
    nbytes: float
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_s / self.measured_s - 1.0


def backtest(worlds: Sequence[Cluster]) -> tuple[Residual, ...]:
    """Return the residuals of the last of `worlds`, predicted from the nearest smaller one that used the same link."""
    if len(worlds) < 2:
        return ()
    held, span = _link(worlds[-1]), worlds[-1].world
    known = [found for world in worlds[:-1] if (world.nodes > 1) == (span.nodes > 1) for found in _link(world).measured]
    smaller = replace(held, measured=tuple(known))
    residuals = []
    for found in held.measured:
        nearest = smaller.chosen(found.collective, span) if known else None
        if nearest is None or nearest.span == span:
            continue
        for way in (QUEUED, BESIDE):
            own, other = _in_way(found, way), _in_way(nearest, way).on(found.collective, span)
            residuals += [
                Residual(found.collective, way, nbytes, other.seconds(nbytes), own.curve.seconds(nbytes))
                for nbytes in _sizes(found)
                if own.curve.seconds(nbytes) > 0.0
            ]
    return tuple(residuals)


def _in_way(found: Measured, way: str) -> Measured:
    return found if way == QUEUED else found.in_way(way, 1.0)


def _link(world: Cluster) -> Link:
    link = world.links.inter if world.nodes > 1 else world.links.intra
    assert link is not None  # a world is measured on the link it needs
    return link


def _sizes(found: Measured) -> list[float]:
    """Return the sizes at which the table bends, and its ends: those that were measured."""
    ends = found.sizes or (1.0, 1.0)
    return sorted({*ends, *(float(knee) for knee, _ in found.curve.knees)})
