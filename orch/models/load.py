"""How the rows of a mixture were shared out among its experts: plain numbers, which add up over steps and ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """Rows of each expert, and choices of tokens that found no slot."""

    rows: tuple[int, ...]
    dropped: int = 0

    @property
    def imbalance(self) -> float:
        """Rows of the fullest expert over the mean: 1 when all have as many."""
        return max(self.rows) * len(self.rows) / sum(self.rows) if any(self.rows) else 1.0

    @property
    def drop_rate(self) -> float:
        """The share of choices that found no slot."""
        return self.dropped / max(1, self.dropped + sum(self.rows))


def added(loads: Iterable[Mapping[str, Load]]) -> dict[str, Load]:
    """Return the sums, by mixture, of what several steps or ranks saw."""
    total: dict[str, Load] = {}
    for each in loads:
        for name, load in each.items():
            so_far = total.get(name, Load((0,) * len(load.rows)))
            rows = tuple(a + b for a, b in zip(so_far.rows, load.rows, strict=True))
            total[name] = Load(rows, so_far.dropped + load.dropped)
    return total
