"""Measure the collectives of a gang: seconds by size, one at a time and in a queue, alone and beside compute.

Every rank calls `measure_links` at the same time. The figures are plain numbers; `LinkTimes.link` and
`LinkTimes.sharing` are the forms in which a cluster holds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from time import perf_counter, process_time, thread_time
from typing import Any

import torch

from orch.cluster import Link, Sharing, Span
from orch.cluster.sharing import BESIDE, BESIDE_SINGLE, SINGLE, STOLEN
from orch.runtime import collectives
from orch.runtime.base import GLOO_THREADS, backend_of

SIZES = (1 << 10, 1 << 13, 1 << 15, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
QUEUED = "queued"
# In a step several collectives are handed over, and the group works them off: more at once where each takes less.
LONGEST_QUEUE, SHORTEST_QUEUE = 16, 3
# An odd number: of two a median is a mean, and the machine's mood is in it.
ROUNDS, FEWEST_ROUNDS = 6, 3
FEWEST_SIZES = 2
# Sizes nearer than this factor say the same twice; a collective longer than this hides any start-up behind itself.
CLOSE, LONG_S = 1.5, 0.1
# A thread that runs for this share of the time has a core of its own.
OWN_CORE = 0.9
PRODUCTS, PACE_S = 20, 0.15

Work = Callable[[], None]
Launch = Callable[[], Any]
BySize = Mapping[int, float]


@dataclass(frozen=True)
class LinkTimes:
    """Seconds of collectives, by way (`queued`, and those of `cluster.sharing.WAYS`), collective and payload bytes
    (all-gather: of the whole result).
    """

    ranks: int
    seconds: Mapping[str, Mapping[str, BySize]] = field(default_factory=dict)
    lanes: int = 1

    def link(self, span: Span, source: str = "measured in this run") -> Link:
        """Return a link that costs what was measured on `span`."""
        tables = {
            way: {name: {float(size): time for size, time in found.items()} for name, found in named.items()}
            for way, named in self.seconds.items()
        }
        return Link.from_tables(tables.pop(QUEUED), span, source, ways=tables)

    def sharing(self, source: str = "measured in this run") -> Sharing:
        """Return what sharing costs, in the cluster's form."""
        return Sharing(source=source, lanes=self.lanes)


def merge(times: Sequence[LinkTimes]) -> LinkTimes:
    """Return one figure of all ranks' (or rounds'): medians, but means of what compute loses, which ranks share. Of the
    sizes, those that every round could afford.
    """
    first = times[0]
    seconds = {
        way: {
            name: {
                size: (fmean if way == STOLEN else median)([other.seconds[way][name][size] for other in times])
                for size in found
                if all(size in other.seconds[way][name] for other in times)
            }
            for name, found in named.items()
        }
        for way, named in first.seconds.items()
    }
    return LinkTimes(first.ranks, seconds, first.lanes)


def measure_links(
    group: Any,
    *,
    work: Work | None = None,
    most_bytes: int = SIZES[-1],
    budget_s: float = 4.0,
    longest_s: float = math.inf,
    device: torch.device | None = None,
    rows: bool = False,
) -> LinkTimes:
    """Return what collectives of up to `most_bytes` cost in `group`, measured for about `budget_s`
    seconds (longer where a few collectives take longer); with one rank there is nothing to measure. Sizes are left out
    that would take more than `longest_s`, as far as the one before can tell.

    `work` does a few milliseconds of what the device does while it communicates; None: a product of matrices. `rows`: the
    all-to-all too, by which rows of mixtures travel.
    """
    if group.size() == 1:
        return LinkTimes(1)
    device = torch.device("cpu") if device is None else device
    meter = _Meter(group, device, _product(device) if work is None else work)
    most_bytes = max(SIZES[1], min(SIZES[-1], most_bytes))
    sizes = [*(size for size in SIZES if size < most_bytes / CLOSE), most_bytes]
    kinds = _kinds(meter.backend, group.size(), group.rank(), device, rows)
    share = budget_s / (len(kinds) * len(sizes))
    seconds: dict[str, dict[str, dict[int, float]]] = {}
    for name, make in kinds.items():
        taken_s = 0.0
        for place, size in enumerate(sizes):
            if place >= FEWEST_SIZES and taken_s * size / sizes[place - 1] > longest_s:
                break
            for way, time in meter.collective(make(size), share).items():
                seconds.setdefault(way, {}).setdefault(name, {})[size] = time
            taken_s = meter.agreed(seconds[SINGLE][name][size])
    return LinkTimes(group.size(), seconds, 1 if device.type == "cuda" else GLOO_THREADS)


class _Meter:
    """Times launches on one rank, while the other ranks do the same."""

    def __init__(self, group: Any, device: torch.device, work: Work) -> None:
        self.backend = backend_of(group, device)
        self._size = group.size()
        self._device = device
        self._work = work
        self._meet()
        work()
        self._unit_s, self._share = self._pace(PACE_S)

    def collective(self, launch: Launch, budget_s: float) -> dict[str, float]:
        """Return the seconds of one collective in every way: means, as a block's step time is one, hiccups included."""
        self._queue(launch, 1)
        first_s = self.agreed(self._queue(launch, 1))
        long = first_s > LONG_S
        queue = 1 if long else max(SHORTEST_QUEUE, min(LONGEST_QUEUE, int(budget_s / 8 / first_s)))
        rounds = 1 if long else max(FEWEST_ROUNDS, min(ROUNDS, int(budget_s / 8 / (queue * first_s))))
        singles = max(FEWEST_ROUNDS, min(2 * ROUNDS, int(budget_s / 8 / first_s)))
        single = fmean(self._queue(launch, 1) for _ in range(singles))
        queued = single if long else fmean(self._queue(launch, queue) for _ in range(rounds))
        result = {QUEUED: queued, SINGLE: single}
        alone = [self._beside(launch, 1)]
        beside_s = max(first_s, self.agreed(alone[0][0]))
        slow = beside_s > LONG_S
        more = 0 if long else 1 if slow else max(FEWEST_ROUNDS, min(ROUNDS, int(budget_s / 8 / beside_s)))
        alone += [self._beside(launch, 1) for _ in range(more)]
        queue = max(SHORTEST_QUEUE, min(LONGEST_QUEUE, int(budget_s / 4 / beside_s)))
        rounds = 0 if slow else max(FEWEST_ROUNDS, min(ROUNDS, int(budget_s / 4 / (queue * beside_s))))
        beside = [self._beside(launch, queue) for _ in range(rounds)] or alone
        result[BESIDE_SINGLE] = fmean(time for time, _ in alone)
        result[BESIDE] = fmean(time for time, _ in beside)
        result[STOLEN] = max(0.0, fmean(stolen for _, stolen in beside))
        return result

    def _queue(self, launch: Launch, number: int) -> float:
        """Return the seconds of one of `number` collectives that are launched together."""
        begin = perf_counter()
        works = [launch() for _ in range(number)]
        for work in reversed(works):
            work.wait()
        return (perf_counter() - begin) / number

    def _beside(self, launch: Launch, number: int) -> tuple[float, float]:
        """Return the seconds of one of `number` collectives beside compute, and the seconds of compute that it took away.

        Where ranks share cores that is what the other threads of this process ran, which nobody else's speed or turn
        changes; with cores of its own, the time in which the computing thread did not run.
        """
        self._meet()
        begin, own, all_threads = perf_counter(), thread_time(), process_time()
        ended: list[float] = []
        works = [launch() for _ in range(number)]
        works[-1].get_future().add_done_callback(lambda _: ended.append(perf_counter()))
        units = 0
        while not works[-1].is_completed():
            self._work()
            units += 1
        spent, ran = perf_counter() - begin, thread_time() - own
        others = process_time() - all_threads - ran
        for work in works:
            work.wait()
        end = ended[0] if ended else perf_counter()
        if self._device.type == "cuda":
            lost = spent - units * self._unit_s
        else:
            lost = (others if self._share < OWN_CORE else self._share * spent - ran) / self._share
        return (end - begin) / number, lost / number

    def _pace(self, budget_s: float) -> tuple[float, float]:
        """Return the seconds of one unit of work, and the share of them in which this thread ran, all ranks computing."""
        begin, own, units = perf_counter(), thread_time(), 0
        while perf_counter() - begin < budget_s or units < FEWEST_ROUNDS:
            self._work()
            units += 1
        spent = perf_counter() - begin
        return spent / units, max(1e-3, (thread_time() - own) / spent)

    def agreed(self, seconds: float) -> float:
        """Return the mean over ranks, from which all draw the same numbers."""
        total = torch.tensor([seconds], device=self._device)
        self.backend.allreduce([total]).wait()
        together: float = float(total) / self._size
        return max(1e-6, together)

    def _meet(self) -> None:
        self.backend.allreduce([torch.zeros(1, device=self._device)]).wait()


def _product(device: torch.device) -> Work:
    """Return a few milliseconds of work, the same on every rank."""
    left, right = torch.rand(192, 192, device=device), torch.rand(192, 192, device=device)

    def work() -> None:
        for _ in range(PRODUCTS):
            torch.mm(left, right)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return work


def _kinds(backend: Any, size: int, rank: int, device: torch.device, rows: bool) -> dict[str, Callable[[int], Launch]]:
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

    def all_to_all(nbytes: int) -> Launch:
        sent, received = whole(nbytes), whole(nbytes)
        return lambda: collectives.all_to_all(backend, received, sent, [], [])

    makers: dict[str, Callable[[int], Launch]] = {
        "all-reduce": all_reduce,
        "reduce-scatter": reduce_scatter,
        "all-gather": all_gather,
    }
    if rows:
        makers["all-to-all"] = all_to_all
    return makers
