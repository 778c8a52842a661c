"""Tell a hang from a long computation: somebody waits, nobody advances, and whoever is waited for does nothing.

Time is counted only while the driver itself looks, so a suspended laptop or a stopped driver is no hang.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from orch.gang.local_workers import Look

# A worker that used less than this share of a core over the whole window did nothing.
IDLE_SHARE = 0.05
# All ranks in the same collective and silent may be a slow network: give them this many windows, and as long as they use
# any processor time at all (the system counts it in ticks), as moving bytes does.
SLOW_NETWORK_WINDOWS = 8
TICK_S = 0.02
_LONGEST_STEP_S = 1.0


@dataclass(frozen=True, slots=True)
class Hang:
    """`text` says who hangs, where, and who waits; `rank` is the one whose log to read."""

    rank: int
    text: str


class Watch:
    """Looks at the ranks of one call again and again; says who hangs as soon as that is sure."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._now_s: float | None = None
        self._watched_s = 0.0
        self._silent_since_s = 0.0
        self._state: object = None
        self._samples: deque[tuple[float, list[float | None]]] = deque()

    def hung(self, now_s: float, looks: Sequence[Look], pending: Collection[int]) -> Hang | None:
        """Return who hangs, or None. `pending`: ranks still in the call."""
        self._watched_s += min(now_s - self._now_s, _LONGEST_STEP_S) if self._now_s is not None else 0.0
        self._now_s = now_s
        state = ([look.place.writes for look in looks], sorted(pending))
        if state != self._state:
            self._state = state
            self._silent_since_s = self._watched_s
        self._samples.append((self._watched_s, [look.cpu_s for look in looks]))
        while len(self._samples) > 1 and self._samples[1][0] <= self._watched_s - self._window_s:
            self._samples.popleft()
        silent_s = self._watched_s - self._silent_since_s
        if silent_s < self._window_s or self._watched_s - self._samples[0][0] < self._window_s:
            return None
        return self._judge(silent_s, looks, pending)

    def _judge(self, silent_s: float, looks: Sequence[Look], pending: Collection[int]) -> Hang | None:
        size = len(looks)
        busy = {rank for rank in pending if not self._idle(rank)}
        waiting = [rank for rank in sorted(pending) if looks[rank].place.waiting and not looks[rank].stopped]
        stopped = [rank for rank in sorted(pending) if looks[rank].stopped]
        missing = [rank for rank in range(size) if rank not in waiting and rank not in stopped]
        if stopped and not busy:
            others = [rank for rank in sorted(pending) if rank not in stopped]
            return name_hang(stopped, looks, "is stopped", [r for r in others if r in waiting])
        if not waiting or busy & set(missing):
            return None
        if missing:
            what = "hangs" if set(missing) & set(pending) else "has returned"
            return name_hang(missing, looks, what, waiting)
        if busy:
            return None
        places = {str(looks[rank].place) for rank in waiting}
        if len(places) > 1:
            each = "; ".join(f"rank {rank} in {looks[rank].place}" for rank in waiting)
            return Hang(waiting[0], f"the {size} ranks wait for each other in different tasks: {each}")
        if silent_s >= SLOW_NETWORK_WINDOWS * self._window_s and not any(
            self._used_s(rank) > TICK_S for rank in waiting
        ):
            text = f"all {size} ranks wait in {places.pop()} and nothing moves: is the network between them up?"
            return Hang(waiting[0], text)
        return None

    def _idle(self, rank: int) -> bool:
        return self._used_s(rank) < IDLE_SHARE * (self._samples[-1][0] - self._samples[0][0])

    def _used_s(self, rank: int) -> float:
        """Return the processor seconds that `rank` used within the window; 0 where the system does not say."""
        before, after = self._samples[0][1][rank], self._samples[-1][1][rank]
        return after - before if before is not None and after is not None else 0.0


def name_ranks(ranks: Sequence[int]) -> str:
    """Return `rank 2` or `ranks 0, 1, 3`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def waited(waiters: Sequence[int], verb: str) -> str:
    """Return `; ranks 0, 1 waited for it`, or nothing."""
    return f"; {name_ranks(waiters)} {verb} for it" if waiters else ""


def name_hang(ranks: Sequence[int], looks: Sequence[Look], what: str, waiters: Sequence[int]) -> Hang:
    """Return the sentence that names hanging `ranks`, where they are, and who waits for them."""
    place = str(looks[ranks[0]].place)
    verb = "wait" if len(waiters) != 1 else "waits"
    pronoun = waited(waiters, verb) if len(ranks) == 1 else waited(waiters, verb).replace("for it", "for them")
    plural = {"hangs": "hang", "is stopped": "are stopped", "has returned": "have returned"}
    said = what if len(ranks) == 1 else plural[what]
    return Hang(ranks[0], f"{name_ranks(ranks)} of {len(looks)} {said}{f' in {place}' if place else ''}{pronoun}")
