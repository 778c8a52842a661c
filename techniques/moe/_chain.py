"""Orders of the tasks of a chain of layers: how long an order takes, and list scheduling.

Numbers only: a chain's chunks become a `Work` (`techniques.moe._planner`), an order is a sequence of its task numbers, and
every stream takes its own tasks in that order. The tasks of one stream follow each other as they stand, ready or not: a badly
placed one holds up all behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product

Key = tuple[int, int, int]
# What a task is to a schedule: dense work up to attention, rows on their way out, experts, rows on their way back, and what is
# short and holds others up.
DENSE, OUT, EXPERT, BACK, SHORT = "dense", "out", "expert", "back", "short"


@dataclass(frozen=True)
class Work:
    """The chunks of one chain in numbers: of each task its layer, chunk, kind, seconds and stream, and those it waits for.

    Tasks stand so that each comes behind those that it waits for.
    """

    keys: tuple[Key, ...]
    kinds: tuple[str, ...]
    seconds: tuple[float, ...]
    streams: tuple[str, ...]
    before: tuple[tuple[int, ...], ...]
    backward: bool = False
    behind: tuple[tuple[int, ...], ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if self.keys and not self.behind:
            object.__setattr__(self, "behind", turned(self.before))

    def makespan(self, order: Sequence[int]) -> float:
        """Return when the last task ends, each stream taking its own in `order`. Raises ValueError for one that waits for a
        later one.
        """
        free = dict.fromkeys(self.streams, 0.0)
        ends = [-1.0] * len(self.keys)
        seconds, streams, before = self.seconds, self.streams, self.before
        for number in order:
            stream = streams[number]
            start = free[stream]
            for other in before[number]:
                end = ends[other]
                if end < 0.0:
                    raise ValueError(f"task {self.keys[number]} stands before {self.keys[other]}, which it waits for")
                if end > start:
                    start = end
            free[stream] = ends[number] = start + seconds[number]
        return max(free.values())

    def bound(self) -> float:
        """Return what the busiest stream takes alone: no order takes less."""
        total: dict[str, float] = {}
        for stream, seconds in zip(self.streams, self.seconds, strict=True):
            total[stream] = total.get(stream, 0.0) + seconds
        return max(total.values())

    def check(self, order: Sequence[int]) -> None:
        """Raise ValueError unless `order` has every task once, each behind those that it waits for."""
        if sorted(order) != list(range(len(self.keys))):
            raise ValueError("an order has every task of the chain once")
        self.makespan(order)


def turned(before: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Return for each task those that wait for it, from those that it waits for."""
    behind: list[list[int]] = [[] for _ in before]
    for number, earlier in enumerate(before):
        for other in earlier:
            behind[other].append(number)
    return tuple(map(tuple, behind))


def greedy(work: Work, priority: Mapping[str, int]) -> list[int]:
    """Return a list schedule: of the tasks that may run the one that can start first; then the one whose kind has the smaller
    number, then by layer and chunk, in the order in which gradients come for backward (sp-moe brief, section 4.2).
    """
    sign = -1 if work.backward else 1
    places = sorted(
        range(len(work.keys)),
        key=lambda n: (priority.get(work.kinds[n], 0), work.keys[n][0], sign * work.keys[n][2], n),
    )
    rank = [0] * len(places)
    for place, number in enumerate(places):
        rank[number] = place
    names = list(dict.fromkeys(work.streams))
    stream = [names.index(name) for name in work.streams]
    free = [0.0] * len(names)
    begins = [0.0] * len(rank)
    left = [len(earlier) for earlier in work.before]
    ready = [number for number, waits in enumerate(left) if not waits]
    seconds, behind = work.seconds, work.behind
    order: list[int] = []
    while ready:
        chosen, least = -1, 0.0
        for number in ready:
            start, open_at = begins[number], free[stream[number]]
            if open_at > start:
                start = open_at
            if chosen < 0 or start < least or (start == least and rank[number] < rank[chosen]):
                chosen, least = number, start
        ready.remove(chosen)
        free[stream[chosen]] = end = least + seconds[chosen]
        order.append(chosen)
        for other in behind[chosen]:
            if end > begins[other]:
                begins[other] = end
            left[other] -= 1
            if not left[other]:
                ready.append(other)
    return order


# Who goes first where several could: attention or experts, rows out or rows back; or nobody, then layers and chunks decide.
POLICIES: dict[str, dict[str, int]] = {
    f"{first}-{way}": {
        SHORT: 0,
        DENSE: 1 if first == "dense" else 2,
        EXPERT: 2 if first == "dense" else 1,
        OUT: 1 if way == "out" else 2,
        BACK: 2 if way == "out" else 1,
    }
    for first, way in product(("dense", "expert"), ("out", "back"))
} | {"fifo": {}}


def by_policy(work: Work, policy: str | None) -> list[int]:
    """Return the list schedule of a policy; of the best one, the first on ties, where none is asked for."""
    if policy is not None:
        return greedy(work, POLICIES[policy])
    return min((greedy(work, one) for one in POLICIES.values()), key=work.makespan)


def layer_by_layer(work: Work, order: Sequence[int]) -> list[int]:
    """Return the order with no task of a layer before the last of the layer ahead of it."""
    return sorted(order, key=lambda number: work.keys[number][0])


def divisors(most: int) -> Iterator[int]:
    """Yield the powers of two up to `most`: of any two of them one divides the other."""
    degree = 1
    while degree <= most:
        yield degree
        degree *= 2


def aligned(dense: Sequence[int], degree: int) -> tuple[int, ...]:
    """Return the bounds of `degree` chunks of mixtures beside dense ones: some of theirs, or theirs cut further, so that as few
    chunks as can be wait for two.
    """
    number = len(dense) - 1
    if degree <= number:
        places = [number * place // degree for place in range(degree + 1)]
        return tuple(dense[place] for place in places)
    found: list[int] = []
    for place, (first, last) in enumerate(pairwise(dense)):
        parts = degree * (place + 1) // number - degree * place // number
        parts = min(parts, last - first)
        found += [first + (last - first) * part // parts for part in range(parts)]
    return (*found, dense[-1])
