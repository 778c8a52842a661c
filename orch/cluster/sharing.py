"""What it costs that computing, communicating and the runtime itself share a machine. Measured, never assumed.

A collective is timed in five ways: in a queue of others (what a link's curve means), one at a time, and both again while
every rank computes; the last way is the compute that one collective takes away, in seconds of that compute alone.
"""

from __future__ import annotations

from dataclasses import dataclass

SINGLE, BESIDE, BESIDE_SINGLE, STOLEN = "single", "beside", "beside-single", "stolen"
WAYS = (SINGLE, BESIDE, BESIDE_SINGLE, STOLEN)


@dataclass(frozen=True, slots=True)
class Sharing:
    """How collectives and compute slow one another. The slowdowns, at least 1, speak for links that were not timed
    beside compute: of compute while the network is busy, and of communication while the device computes.

    `lanes`: collectives of one group that a stream works off at once. `units`: multiprocessors of a device
    that compute and communication compete for (0: nobody said), of which a collective's kernel holds `held` at the rate
    of its link; then compute is slowed by these alone.
    """

    compute_slowdown: float = 1.0
    communication_slowdown: float = 1.0
    source: str = ""
    lanes: int = 1
    units: int = 0
    held: int = 0

    def factor(self, way: str) -> float:
        """Return how many times as long as in a queue a collective takes in this way, where nothing was measured."""
        if way == SINGLE:
            return 1.0
        stolen = 1.0 - 1.0 / self.compute_slowdown if way == STOLEN else 1.0
        return stolen * self.communication_slowdown


@dataclass(frozen=True, slots=True)
class Overhead:
    """Seconds of the compute stream that the runtime itself takes: each step, and for each collective it launches."""

    step_s: float = 0.0
    collective_s: float = 0.0
    source: str = ""
