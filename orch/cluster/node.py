"""A node as it stands in the network: what it may send and receive, how far away it is, how fast its devices are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Node:
    """One node. Rates are bytes a second and direction, None where nothing limits them.

    `speed` is that of its devices, 1.0 being the device's own. `delay_s` is one way. `loss` is the share of packets lost.
    """

    egress_bytes_per_s: float | None = None
    ingress_bytes_per_s: float | None = None
    speed: float = 1.0
    delay_s: float = 0.0
    loss: float = 0.0

    @property
    def rate_bytes_per_s(self) -> float | None:
        """The lower of its two rates: what a collective gets from it, in which every member sends and receives alike."""
        rates = [rate for rate in (self.egress_bytes_per_s, self.ingress_bytes_per_s) if rate is not None]
        return min(rates, default=None)


class Pace(NamedTuple):
    """How the slowest member of a group stands to the cluster's usual node: `rate` times its rate, `lag_s` later a message."""

    rate: float = 1.0
    lag_s: float = 0.0


def pace_of(members: Iterable[Node], usual: Node) -> Pace:
    """Return the pace of a collective: that of its slowest member's link, and of its farthest member's distance."""
    rates, delays = [], []
    for node in members:
        delays.append(node.delay_s)
        rates.append(float("inf") if node.rate_bytes_per_s is None else node.rate_bytes_per_s * (1.0 - node.loss))
    if usual.rate_bytes_per_s is None or not rates:
        return Pace()
    return Pace(min(rates) / (usual.rate_bytes_per_s * (1.0 - usual.loss)), max(delays) - usual.delay_s)
