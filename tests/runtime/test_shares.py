"""Which rows are whose where ranks share a mixture's positions: every row once, and slots that do not exist stay empty."""

from __future__ import annotations

import pytest
import torch

from orch.models.zoo.gates import Routing
from orch.models.zoo.mixture import NOTHING, order
from orch.plan import Chunk
from orch.runtime.shares import Shares


def routing(tokens: int, experts: int, top_k: int) -> Routing:
    generator = torch.Generator().manual_seed(3)
    expert = torch.stack([torch.randperm(experts, generator=generator)[:top_k] for _ in range(tokens)]).view(-1)
    token = torch.arange(tokens).repeat_interleave(top_k)
    return Routing(token, expert, torch.ones(tokens * top_k), torch.arange(top_k).repeat(tokens))


@pytest.mark.parametrize(
    ("capacity", "positions", "ranks"), [(None, 4, 2), (None, 2, 4), (5, 3, 2), (3, 1, 4), (4, 2, 2)]
)
def test_shares_hold_every_row_once(capacity: int | None, positions: int, ranks: int) -> None:
    experts, number = 3, 8
    rows = order(routing(number, experts, 2), experts, capacity)
    found = [Shares(rows, ranks, place, positions, experts, slots=capacity is not None) for place in range(ranks)]
    routes = torch.cat([one.rows.route for one in found])
    assert sorted(routes[routes != NOTHING].tolist()) == sorted(rows.route[rows.route != NOTHING].tolist())
    for one in found:
        assert int(one.rows.position.max()) < positions
        assert one.rows.counts.sum() == one.rows.route.numel()
    tokens = torch.randn(number, 4)
    whole = rows.gather(tokens)
    parts = [one.rows.gather(tokens) for one in found]
    torch.testing.assert_close([one.own(whole) for one in found], parts)
    # What all gather is put where it came from.
    found[0].came(Chunk(0, positions), torch.cat(parts))
    where = [lambda chunk: torch.arange(len(parts[0]))] * ranks
    torch.testing.assert_close(found[0].whole(whole, where), whole)
