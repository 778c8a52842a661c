"""Where the ranks of a group sit: how many, on how many nodes, how many on the fullest node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from orch.cluster.node import Pace
from orch.errors import OrchError


class Span(NamedTuple):
    """A group of ranks as the cost models see it. Irregular groups (5 ranks on 2 nodes) count their fullest node.

    `pace`: of the slowest node among them, against the cluster's usual one.
    """

    size: int
    nodes: int = 1
    per_node: int = 1
    pace: Pace = Pace()

    def __str__(self) -> str:
        return f"{self.size} ranks on {self.nodes} node{'s' if self.nodes > 1 else ''}"


def span_of(ranks: Sequence[int], devices_per_node: int, world_size: int) -> Span:
    """Return the span of `ranks`; rank r sits on node r // devices_per_node. Raises OrchError for a rank that does not
    exist or comes twice.
    """
    return _span_of(ranks if isinstance(ranks, range) else tuple(ranks), devices_per_node, world_size)


@lru_cache(maxsize=256)
def _span_of(ranks: range | tuple[int, ...], devices_per_node: int, world_size: int) -> Span:
    if not ranks:
        raise OrchError("a group needs at least one rank", code="E304")
    # 65,536 neighbours in order are the common case, and looking at each of them costs more than the rest of a forecast.
    whole = range(ranks[0], ranks[-1] + 1)
    in_order = len(ranks) == len(whole) and (ranks == whole if isinstance(ranks, range) else [*ranks] == [*whole])
    first, last = (ranks[0], ranks[-1]) if in_order else (min(ranks), max(ranks))
    distinct = len(ranks) if in_order else len(set(ranks))
    if distinct != len(ranks):
        twice = next(rank for rank, count in Counter(ranks).items() if count > 1)
        raise OrchError(f"rank {twice} is twice in one group", code="E304")
    if first < 0 or last >= world_size:
        wrong = first if first < 0 else last
        raise OrchError(f"rank {wrong} does not exist; this cluster has ranks 0 to {world_size - 1}", code="E304")
    if last - first + 1 == distinct:  # neighbours need no counting
        nodes = last // devices_per_node - first // devices_per_node + 1
        head, tail = devices_per_node - first % devices_per_node, last % devices_per_node + 1
        fullest = distinct if nodes == 1 else devices_per_node if nodes > 2 else max(head, tail)
        return Span(distinct, nodes, fullest)
    counts = Counter(rank // devices_per_node for rank in ranks)
    return Span(distinct, len(counts), max(counts.values()))
