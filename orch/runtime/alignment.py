"""How far the clocks of ranks are apart: each exchanges pings with rank 0 and keeps the quickest.

A stamp of another machine means something beside ours only with that. Ranks of one machine share its monotonic clock, and
say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import torch

from orch.runtime.clock import clock_name
from orch.runtime.session import Place

PINGS = 16


@dataclass(frozen=True, slots=True)
class Offset:
    """What to add to this rank's clock for that of rank 0, in seconds, as it was at `at_s` of its own clock.

    The true value is no farther than `error_s` away: half the time that the quickest ping and its answer took. Ranks of
    one `clock` (a boot of a machine, a time namespace) need none of this; "" is a clock of which nothing is known.
    """

    at_s: float
    seconds: float
    error_s: float
    clock: str


def offset(worker: Place, pings: int = PINGS) -> Offset:
    """Return the offset of this rank's clock. Every rank must be called; rank 0 answers one after the other."""
    now = perf_counter()
    best = Offset(now, 0.0, 0.0, clock_name())
    if worker.world_size == 1:
        return best
    group, stamp = worker.process_group("meet"), torch.zeros(1, dtype=torch.float64)
    worker.progress.set(task="comparing clocks", waiting=True)
    if worker.rank == 0:
        for rank in range(1, worker.world_size):
            for _ in range(pings):
                group.recv([stamp], rank, 0).wait()
                stamp[0] = perf_counter()
                group.send([stamp], rank, 0).wait()
    else:
        for number in range(pings):
            sent = perf_counter()
            group.send([stamp], 0, 0).wait()
            group.recv([stamp], 0, 0).wait()
            came = perf_counter()
            if number == 0 or (came - sent) / 2 < best.error_s:
                middle = (sent + came) / 2
                best = Offset(middle, float(stamp) - middle, (came - sent) / 2, best.clock)
    worker.progress.set(task=None, waiting=False)
    return best
