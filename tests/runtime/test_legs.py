"""Legs of an all-to-all: halves and hops, played by all ranks in one process, bring the very rows that one piece brings."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from orch.plan import ACROSS, FAR, INSIDE, NEAR, WHOLE, AllToAll, Chunk, Rows
from orch.runtime.legs import Legs, Parcel, Tallies

NODES, PER_NODE = 3, 2
RANKS = NODES * PER_NODE
COUNTS = torch.randint(0, 4, (RANKS, RANKS), generator=torch.Generator().manual_seed(4))  # [from, to]


def group_of(rank: int, leg: str) -> list[int]:
    node = rank // PER_NODE
    return list(range(node * PER_NODE, (node + 1) * PER_NODE)) if leg in (NEAR, INSIDE) else list(range(RANKS))


def rows_of(rank: int, part: str) -> Tensor:
    """Rows that say where they are from and which they are; on the way back those that came."""
    lines = [[rank, to, n] for to in range(RANKS) for n in range(COUNTS[rank, to])]
    back = [[sender, rank, n] for sender in range(RANKS) for n in range(COUNTS[sender, rank])]
    return torch.tensor(lines if part == "dispatch" else back, dtype=torch.float32).view(-1, 3)


def tallies(rank: int) -> Tallies:
    node, place = divmod(rank, PER_NODE)
    through = [[int(COUNTS[node * PER_NODE + i, n * PER_NODE + place]) for n in range(NODES)] for i in range(PER_NODE)]
    return Tallies(COUNTS[rank].tolist(), COUNTS[:, rank].tolist(), lambda: through)


def exchanged(parcels: list[Parcel], leg: str) -> None:
    """Do what the network would."""
    pieces = [list(torch.split(parcel.sent, parcel.sent_split)) for parcel in parcels]
    for rank, parcel in enumerate(parcels):
        group = group_of(rank, leg)
        got = [pieces[other][group_of(other, leg).index(rank)] for other in group]
        assert [len(one) for one in got] == parcel.received_split
        parcel.received.copy_(torch.cat(got))


@pytest.mark.parametrize("part", ["dispatch", "combine"])
@pytest.mark.parametrize("legs", [(WHOLE,), (NEAR, FAR), (FAR, NEAR), "hops"])
def test_every_way_brings_the_same_rows_in_the_same_order(part: str, legs: tuple[str, ...] | str) -> None:
    if legs == "hops":
        legs = (INSIDE, ACROSS) if part == "dispatch" else (ACROSS, INSIDE)
    all_legs = [Legs(rank, RANKS) for rank in range(RANKS)]
    for leg in legs:
        op = AllToAll(Rows.buffer_of("x", 0, "fp32"), "moe", part, leg=leg, neighbours=PER_NODE)
        exchanged(
            [legs_.parcel(op, lambda r=rank: rows_of(r, part), tallies(rank)) for rank, legs_ in enumerate(all_legs)],
            leg,
        )
    for rank, legs_ in enumerate(all_legs):
        assert legs_.waiting(part) == [(part, Chunk(0, 1))]
        found = legs_.arrived((part, Chunk(0, 1)))
        assert torch.equal(found, rows_of(rank, "combine" if part == "dispatch" else "dispatch"))
        assert legs_.waiting(part) == []
