"""What ranks recorded, on one clock: rank 0's, by the offsets measured when a training began and when it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orch.plan.timeline import Timeline
from orch.runtime.alignment import Offset


class Clocks:
    """The clocks of all ranks, from what they measured at a `first` and a `last` moment: clocks drift evenly in between.

    `error_s`: no stamp is farther from where it belongs, seconds; 0 where all ranks share one clock.
    """

    def __init__(self, first: Sequence[Offset], last: Sequence[Offset]) -> None:
        self._first, self._last = _settled(first), _settled(last)
        self.error_s = max(one.error_s for one in (*self._first, *self._last))

    def aligned(self, timelines: Sequence[Timeline | None]) -> tuple[Timeline | None, ...]:
        """Return the timelines of all ranks, in order, each beginning when it did on rank 0's clock."""
        return tuple(
            timeline and replace(timeline, began_s=timeline.began_s + self.offset_s(rank, timeline.began_s))
            for rank, timeline in enumerate(timelines)
        )

    def offset_s(self, rank: int, at_s: float) -> float:
        """Return what to add to a stamp `at_s` of `rank`'s clock."""
        first, last = self._first[rank], self._last[rank]
        if last.at_s <= first.at_s:
            return first.seconds
        return first.seconds + (last.seconds - first.seconds) * (at_s - first.at_s) / (last.at_s - first.at_s)


def one_clock(workers: Sequence[Mapping[str, Any]]) -> list[Offset]:
    """Return the offsets of ranks that all read one clock, as on one machine: none has any. Empty where they must be
    measured; `workers` are what the ranks say of themselves.
    """
    name = str(workers[0]["clock"])
    alike = name and all(worker["clock"] == name for worker in workers)
    return [Offset(0.0, 0.0, 0.0, name) for _ in workers] if alike else []


def _settled(offsets: Sequence[Offset]) -> list[Offset]:
    """Take the offset of a rank that shares rank 0's clock for what it is: none."""
    own = offsets[0].clock
    return [replace(one, seconds=0.0, error_s=0.0) if own and one.clock == own else one for one in offsets]
