"""What a figure rests on, and how wide its band is for that reason.

Kinds, best first: `measured` (a table on this group size), `fitted` (a line through measurements, or solved from other
figures), `nameplate` (data sheet). Any of them may be carried beyond what was measured: then `times` says by which
factor in ranks or bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Kind = Literal["free", "measured", "fitted", "nameplate"]

# Relative half widths where a cluster file gives none. Measured and fitted: the spread of back-fits
# over models (b of 16 V100: 1.7 to 2.0 ns/B; a: 0.8 to 1.0 ms). Nameplate: our guess; start-ups on data sheets leave
# the software out.
START_UP_BAND: dict[Kind, float] = {"free": 0.0, "measured": 0.1, "fitted": 0.2, "nameplate": 0.5}
PER_BYTE_BAND: dict[Kind, float] = {"free": 0.0, "measured": 0.1, "fitted": 0.15, "nameplate": 0.3}
COMPUTE_BAND: dict[Kind, float] = {"free": 0.0, "measured": 0.05, "fitted": 0.15, "nameplate": 0.4}
WIDER_PER_DOUBLING = 0.25  # our guess: each doubling beyond the measured group widens a band by a quarter of itself


@dataclass(frozen=True, slots=True)
class Basis:
    """What one part of a prediction rests on."""

    kind: Kind
    times: float = 1.0
    source: str = ""

    def __str__(self) -> str:
        beyond = f", extrapolated {self.times:.3g} times" if self.times > 1.0 else ""
        return f"{self.kind}{beyond}"

    def widened(self, band: float) -> float:
        """Return a relative band made wider by the extrapolation."""
        return band * (1.0 + WIDER_PER_DOUBLING * math.log2(self.times))


@dataclass(frozen=True, slots=True)
class Bands:
    """Relative half widths: a cost x stands for x/(1+band) to x*(1+band)."""

    start_up: float
    per_byte: float
    compute: float
