"""A node as it stands in the network: what it may send and receive, how far away it is, how fast its devices are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """What one node differs in. Rates are bytes a second and direction, None where nothing limits them.

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
