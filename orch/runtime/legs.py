"""What each leg of an all-to-all hands over and gets: in one piece, in two halves side by side, or in two hops.

P ranks share the experts out, m of them (`neighbours`) on each of N nodes; this one is j-th on its node. On the way out a
rank's rows stand rank after rank of those they are meant for; on the way back they end so again. What a relay holds
stands by the neighbour it came from, or is meant for, and by node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from orch.plan import ACROSS, FAR, INSIDE, NEAR, WHOLE, AllToAll, Chunk

OUT = ("dispatch", "combine_backward")
Key = tuple[str, Chunk]


@dataclass(frozen=True)
class Parcel:
    """What an all-to-all hands over and fills: rows end to end by rank, and how many of each rank (none: equally many).

    `steps`: pair by pair, one after another. `root`: not rows from rank to rank but `sent`, in place, from the rank at that
    place to all, or with `adds` summed up there. `rows`: the bytes of the rows themselves that leave and come, where what travels
    is packed in sizes that only the data know.
    """

    sent: Tensor
    received: Tensor
    sent_split: list[int]
    received_split: list[int]
    steps: bool = False
    root: int | None = None
    adds: bool = False
    rows: tuple[int, int] | None = None


@dataclass(frozen=True)
class Summed(Parcel):
    """What every rank hands over a part of a sum of, and fills with the sum: one tensor, in place."""

    @staticmethod
    def of(value: Tensor) -> Summed:
        """Return the parcel of a copy of `value`."""
        copy = value.clone(memory_format=torch.contiguous_format)
        return Summed(copy, copy, [], [])


@dataclass(frozen=True)
class Gathered(Parcel):
    """What every rank hands over a part of [Q, M], and fills with all parts, rank after rank [P Q, M]."""

    @staticmethod
    def of(value: Tensor, ranks: int) -> Gathered:
        """Return the parcel of this rank's part `value`."""
        part = value.contiguous()
        return Gathered(part, part.new_empty(ranks * part.shape[0], *part.shape[1:]), [], [])


@dataclass(frozen=True)
class Tallies:
    """Rows of one chunk: `mine` [P] of this rank meant for each rank, `theirs` [P] of each rank meant for this one, and
    `relayed` [m][N], those that each neighbour sends through this rank to each node.
    """

    mine: list[int]
    theirs: list[int]
    relayed: Callable[[], list[list[int]]]


class Legs:
    """The rows of one mixture in one step that are on their way."""

    def __init__(self, place: int, ranks: int) -> None:
        self._place, self._ranks = place, ranks
        # What leaves and is not handed over yet, or half of it; what came, by leg.
        self._leaving: dict[Key, Tensor] = {}
        self._came: dict[Key, dict[str, Tensor]] = {}
        self._tallies: dict[Key, tuple[Tallies, int]] = {}

    def leave(self, key: Key, rows: Tensor) -> None:
        """Let `rows` be what the exchange of `key` hands over."""
        self._leaving[key] = rows

    def leaving(self, key: Key) -> Tensor | None:
        """Take back what was to be handed over, None where nobody said."""
        return self._leaving.pop(key, None)

    def around(self, key: Key) -> tuple[Key, Tensor] | None:
        """Return the larger chunk, and its rows, of which `key` is a piece; after its last piece it is gone."""
        part, chunk = key
        for other, rows in self._leaving.items():
            larger = other[1]
            same = other[0] == part and (larger.turn, larger.turns) == (chunk.turn, chunk.turns)
            if same and larger.begin <= chunk.begin and chunk.end <= larger.end:
                if chunk.end == larger.end:
                    del self._leaving[other]
                return other, rows
        return None

    def arrive(self, key: Key, rows: Tensor) -> None:
        """Let `rows` be what has come."""
        self._came[key] = {WHOLE: rows}

    def waiting(self, part: str) -> list[Key]:
        """Return the chunks of `part` that came, or where one rank is alone never left."""
        return [key for key in (*self._came, *self._leaving) if key[0] == part]

    def has(self, key: Key) -> bool:
        """Whether rows of a chunk are here, or half of them."""
        return key in self._came

    def parcel(self, op: AllToAll, rows: Callable[[], Tensor], tallies: Tallies) -> Parcel:
        """Return what the leg `op` hands over and fills; `rows()` are those of the chunk where nobody left others."""
        key = (op.part, op.chunk)
        self._tallies[key] = (tallies, op.neighbours)
        out = op.part in OUT
        first = INSIDE if out else ACROSS
        if op.leg in (INSIDE, ACROSS):
            held = self._taken(key, rows) if op.leg == first else self._came[key].pop(first)
            sent, sent_split, received_split = self._hop(op, held, tallies, out=out)
        else:
            sent, sent_split, received_split = self._half(op, self._taken(key, rows), tallies, out=out)
        received = sent.new_empty(sum(received_split), sent.shape[1])
        self._came.setdefault(key, {})[op.leg] = received
        return Parcel(sent.contiguous(), received, sent_split, received_split, op.algorithm == "pairwise")

    def among(self, op: AllToAll) -> Sequence[int]:
        """Return the places of the ranks between which the leg `op` moves rows, where it is the whole way or a half of it."""
        first = self._first(op.neighbours)
        near = range(first, first + op.neighbours)
        if op.leg == NEAR:
            return near
        return [place for place in range(self._ranks) if op.leg == WHOLE or place not in near]

    def arrived(self, key: Key) -> Tensor:
        """Return the rows of a chunk that came: rank after rank of those they are from, or were meant for."""
        if key not in self._came:
            return self._leaving.pop(key)
        came = self._came.pop(key)
        if WHOLE in came:
            return came[WHOLE]
        tallies, neighbours = self._tallies[key]
        out = key[0] in OUT
        if FAR in came:
            before = sum((tallies.theirs if out else tallies.mine)[: self._first(neighbours)])
            return torch.cat([came[FAR][:before], came[NEAR], came[FAR][before:]])
        if out:
            return came[ACROSS]
        return _turned(came[INSIDE], _table(tallies.mine, neighbours, by_neighbour=True))

    def _taken(self, key: Key, rows: Callable[[], Tensor]) -> Tensor:
        """Return the rows of a chunk; they stay for the other half until it has taken them as well."""
        left = self._leaving.get(key)
        if left is None:
            left = self._leaving[key] = rows()
        return left

    def _first(self, neighbours: int) -> int:
        return self._place // neighbours * neighbours

    def _half(self, op: AllToAll, rows: Tensor, tallies: Tallies, *, out: bool) -> tuple[Tensor, list[int], list[int]]:
        key = (op.part, op.chunk)
        sent_split, received_split = (tallies.mine, tallies.theirs) if out else (tallies.theirs, tallies.mine)
        if op.leg == WHOLE:
            del self._leaving[key]
            return rows, sent_split, received_split
        first = self._first(op.neighbours)
        last = first + op.neighbours
        begin, end = sum(sent_split[:first]), sum(sent_split[:last])
        if {NEAR, FAR} <= {*self._came.get(key, {}), op.leg}:
            del self._leaving[key]
        if op.leg == NEAR:
            return rows[begin:end], sent_split[first:last], received_split[first:last]
        none = [0] * op.neighbours
        sent_split, received_split = ([*split[:first], *none, *split[last:]] for split in (sent_split, received_split))
        return torch.cat([rows[:begin], rows[end:]]), sent_split, received_split

    def _hop(self, op: AllToAll, rows: Tensor, tallies: Tallies, *, out: bool) -> tuple[Tensor, list[int], list[int]]:
        """Return what one hop sends; [A][B] below: rows stand by A, within it by B."""
        m = op.neighbours
        relayed = tallies.relayed()  # [neighbour][node]
        by_neighbour = [sum(counts) for counts in relayed]
        by_node = self._spread([sum(counts) for counts in zip(*relayed, strict=True)], m)
        mine = _table(tallies.mine, m, by_neighbour=False)  # [node][neighbour]
        to_neighbour = [sum(counts) for counts in zip(*mine, strict=True)]
        theirs = self._spread([sum(counts) for counts in _table(tallies.theirs, m, by_neighbour=False)], m)
        if out and op.leg == INSIDE:
            del self._leaving[op.part, op.chunk]
            return _turned(rows, mine), to_neighbour, by_neighbour
        if out:
            return _turned(rows, relayed), by_node, theirs
        if op.leg == ACROSS:
            del self._leaving[op.part, op.chunk]
            return rows, theirs, by_node
        return _turned(rows, [list(counts) for counts in zip(*relayed, strict=True)]), by_neighbour, to_neighbour

    def _spread(self, by_node: Sequence[int], neighbours: int) -> list[int]:
        """Return splits over all ranks where only those with this rank's place on their node take part."""
        splits = [0] * self._ranks
        splits[self._place % neighbours :: neighbours] = by_node
        return splits


def _table(counts: Sequence[int], neighbours: int, *, by_neighbour: bool) -> list[list[int]]:
    """Return counts by rank as [node][neighbour], or the other way round."""
    by_node = [list(counts[first : first + neighbours]) for first in range(0, len(counts), neighbours)]
    return [list(column) for column in zip(*by_node, strict=True)] if by_neighbour else by_node


def _turned(rows: Tensor, lengths: Sequence[Sequence[int]]) -> Tensor:
    """Return rows that stand [A][B], `lengths[a][b]` of them each, as [B][A]."""
    flat = torch.split(rows, [length for line in lengths for length in line])
    columns = len(lengths[0])
    return torch.cat([flat[a * columns + b] for b in range(columns) for a in range(len(lengths))])
