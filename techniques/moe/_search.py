"""Search for an order of a chain's tasks: simulated annealing over valid orders, the same for the same seed on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import exp
from random import Random

from techniques.moe._chain import DENSE, POLICIES, Key, Work, greedy

# Temperatures, as shares of the makespan begun with.
HOT, COLD = 0.02, 0.0002


def default_order(work: Work) -> list[int]:
    """Return Mast's order without a search: every task of all chunks before the next task, where attention and what follows it
    go chunk by chunk up to the next exchange, if none stands between (brief, section 4.2); backward its mirror.
    """
    shape = (work.keys, work.kinds, work.streams, work.before, work.behind, work.backward)
    return list(_default(*shape))


@lru_cache(maxsize=512)
def _default(
    keys: tuple[Key, ...],
    kinds: tuple[str, ...],
    streams: tuple[str, ...],
    before: tuple[tuple[int, ...], ...],
    behind: tuple[tuple[int, ...], ...],
    backward: bool,
) -> tuple[int, ...]:
    of_place = {place: stream for (_, place, _), stream in zip(keys, streams, strict=True)}
    compute = next((stream for stream, kind in zip(streams, kinds, strict=True) if kind == DENSE), streams[0])
    groups: dict[int, int] = {}
    group, last = 0, compute
    for place in sorted(of_place, reverse=backward):
        if last != compute and of_place[place] == compute:
            group += 1
        groups[place], last = group, of_place[place]
    sign = -1 if backward else 1
    rank = [(sign * layer, groups[place], chunk, sign * place) for layer, place, chunk in keys]
    order = _in_order_of(rank, *((behind, before) if backward else (before, behind)))
    return tuple(order[::-1] if backward else order)


def _in_order_of(
    rank: Sequence[tuple[int, ...]], before: Sequence[Sequence[int]], behind: Sequence[Sequence[int]]
) -> list[int]:
    """Return all tasks, of those that may run always the one of the least rank."""
    left = [len(earlier) for earlier in before]
    ready = {number for number, waits in enumerate(left) if not waits}
    order: list[int] = []
    while ready:
        chosen = min(ready, key=rank.__getitem__)
        ready.remove(chosen)
        order.append(chosen)
        for other in behind[chosen]:
            left[other] -= 1
            if not left[other]:
                ready.add(other)
    return order


@lru_cache(maxsize=256)
def searched(work: Work, trials: int, seed: int) -> list[int]:
    """Return the best order found: never worse than the default one, nor than any list schedule, from the best of which
    `trials` moves begin. A move takes one task to another place among those of its stream.
    """
    starts = [default_order(work), *(greedy(work, policy) for policy in POLICIES.values())]
    order = min(starts, key=work.makespan)
    now = least = work.makespan(order)
    best, random = list(order), Random(seed)
    bound = work.bound()
    for trial in range(trials):
        if least <= bound * (1.0 + 1e-12):
            break
        moved = _moved(work, order, random)
        if moved is None:
            continue
        seconds = work.makespan(moved)
        heat = least * HOT * (COLD / HOT) ** (trial / trials)
        if seconds <= now or random.random() < exp((now - seconds) / heat):
            order, now = moved, seconds
            if seconds < least:
                best, least = list(moved), seconds
    return best


def _moved(work: Work, order: Sequence[int], random: Random) -> list[int] | None:
    """Return the order with one task elsewhere, between those that it waits for and those that wait for it; None where no
    place of its stream is free for it.
    """
    at = random.randrange(len(order))
    task = order[at]
    first, last = at, at
    before, behind = work.before[task], work.behind[task]
    while first > 0 and order[first - 1] not in before:
        first -= 1
    while last < len(order) - 1 and order[last + 1] not in behind:
        last += 1
    stream = work.streams[task]
    places = [place for place in range(first, last + 1) if place != at and work.streams[order[place]] == stream]
    if not places:
        return None
    to = places[random.randrange(len(places))]
    moved = list(order)
    moved.insert(to, moved.pop(at))
    return moved
