"""Measure the collectives of a gang while it warms up: seconds by size, alone and beside compute.

Every rank calls `measure_links` at the same time. The figures are plain numbers; `LinkTimes.link` and
`LinkTimes.sharing` are the forms in which a cluster holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

import torch

from orch.cluster import Link, Sharing, Span
from orch.runtime import collectives
from orch.runtime.base import backend_of

SIZES = (1 << 10, 1 << 15, 1 << 19, 1 << 22, 1 << 24)
FEWEST, MOST = 2, 10
# A stream is measured as it runs in a step: several collectives are handed over, and the group works them off.
QUEUED = 4
SHARED_SIZE = 1 << 20
LONGEST_S = 0.5  # of a queue of collectives; larger ones are not measured


@dataclass(frozen=True)
class LinkTimes:
    """Seconds of collectives by payload bytes (all-gather: of the whole result), and what sharing the machine costs.

    `compute_slowdown` is by how much compute slows while an all-reduce is under way, `communication_slowdown` the
    reverse.
    """

    ranks: int
    seconds: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    compute_slowdown: float = 1.0
    communication_slowdown: float = 1.0

    def link(self, span: Span, source: str = "measured in this run's warm-up") -> Link:
        """Return a link that costs what was measured on `span`."""
        return Link.from_tables(
            {name: {float(size): time for size, time in found.items()} for name, found in self.seconds.items()},
            span,
            source,
        )

    def sharing(self, source: str = "measured in this run's warm-up") -> Sharing:
        """Return the slowdowns in the cluster's form."""
        return Sharing(self.compute_slowdown, self.communication_slowdown, source)


def merge(times: Sequence[LinkTimes]) -> LinkTimes:
    """Return the medians over ranks."""
    first = times[0]
    seconds = {
        name: {size: median(other.seconds[name][size] for other in times) for size in found}
        for name, found in first.seconds.items()
    }
    return LinkTimes(
        first.ranks,
        seconds,
        median(other.compute_slowdown for other in times),
        median(other.communication_slowdown for other in times),
    )


def measure_links(group: Any, *, budget_s: float = 1.5, device: torch.device | None = None) -> LinkTimes:
    """Return what collectives cost in `group`, measured for about `budget_s` seconds; with one rank there is nothing to
    measure.
    """
    size = group.size()
    if size == 1:
        return LinkTimes(1)
    device = torch.device("cpu") if device is None else device
    backend = backend_of(group, device)
    kinds = _kinds(backend, size, group.rank(), device)
    share = budget_s / (len(kinds) * len(SIZES) + 8)
    seconds = {name: _by_size(backend, make, share) for name, make in kinds.items()}
    compute, communication = _sharing(backend, kinds["all-reduce"](SHARED_SIZE), 4 * share, device)
    return LinkTimes(size, seconds, compute, communication)


Launch = Callable[[], Any]


def _kinds(backend: Any, size: int, rank: int, device: torch.device) -> dict[str, Callable[[int], Launch]]:
    def whole(nbytes: int) -> torch.Tensor:
        items = -(-nbytes // (4 * size)) * size
        return torch.zeros(items, dtype=torch.float32, device=device)

    def shard(flat: torch.Tensor) -> torch.Tensor:
        length = flat.numel() // size
        return flat[rank * length : (rank + 1) * length]

    def all_reduce(nbytes: int) -> Launch:
        flat = whole(nbytes)
        return lambda: collectives.all_reduce(backend, flat)

    def reduce_scatter(nbytes: int) -> Launch:
        flat, scratch = whole(nbytes), whole(nbytes)
        return lambda: collectives.reduce_scatter(backend, flat, shard(flat), scratch)

    def all_gather(nbytes: int) -> Launch:
        flat = whole(nbytes)
        return lambda: collectives.all_gather(backend, flat, shard(flat))

    return {"all-reduce": all_reduce, "reduce-scatter": reduce_scatter, "all-gather": all_gather}


def _by_size(backend: Any, make: Callable[[int], Launch], share: float) -> dict[int, float]:
    """Return the seconds of every size, but of none that would hold a slow link up for long: a line goes on from there."""
    found: dict[int, float] = {}
    for size in SIZES:
        found[size] = _typical(backend, make(size), share)
        slowest = torch.tensor([found[size]])
        backend.allreduce([slowest]).wait()  # the mean of all ranks: every one must stop at the same size
        if len(found) > 2 and QUEUED * float(slowest) / backend.size() > LONGEST_S:
            break
    return found


def _typical(backend: Any, launch: Launch, budget_s: float) -> float:
    """Return the median seconds of one collective of a queue; all ranks agree on how often they fill it."""

    def queue() -> float:
        begin = perf_counter()
        works = [launch() for _ in range(QUEUED)]
        for work in reversed(works):
            work.wait()
        return (perf_counter() - begin) / QUEUED

    queue()
    first = torch.tensor([queue()])
    backend.allreduce([first]).wait()
    mean = QUEUED * float(first) / backend.size()
    return median(queue() for _ in range(max(FEWEST, min(MOST, int(budget_s / max(mean, 1e-6))))))


def _sharing(backend: Any, launch: Launch, budget_s: float, device: torch.device) -> tuple[float, float]:
    """Return the slowdown of compute beside all-reduces, and of all-reduces beside compute; at least 1 each."""
    left, right = torch.rand(192, 192, device=device), torch.rand(192, 192, device=device)

    def compute(until: Callable[[], bool]) -> tuple[float, int]:
        begin, done = perf_counter(), 0
        while not until():
            torch.mm(left, right)
            done += 1
        return perf_counter() - begin, max(1, done)

    alone = _typical(backend, launch, budget_s / 3)
    number = max(FEWEST, int(budget_s / 3 / max(alone, 1e-6)))
    counts = torch.tensor([float(number)])
    backend.allreduce([counts]).wait()
    number = max(FEWEST, int(float(counts) / backend.size()))
    stop = perf_counter() + budget_s / 3
    spent, units = compute(lambda: perf_counter() > stop)
    begin = perf_counter()
    works = [launch() for _ in range(number)]
    beside, shared_units = compute(works[-1].is_completed)
    works[-1].wait()
    together = (perf_counter() - begin) / number
    return max(1.0, (beside / shared_units) / (spent / units)), max(1.0, together / alone)
