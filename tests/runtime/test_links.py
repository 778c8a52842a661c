"""Links measured by real processes: all kinds and sizes, in the form a cluster holds."""

from __future__ import annotations

import pytest
import torch

from orch.cluster import Cluster, Device, Links, Span
from orch.runtime import collectives
from orch.runtime.base import backend_of
from orch.runtime.links import SIZES, LinkTimes, measure_links, merge
from tests.runtime.worlds import World, run


def measure(world: World) -> LinkTimes:
    return measure_links(world.group(), budget_s=0.1)


def test_every_size_of_every_collective() -> None:
    times = merge(run(2, measure))
    assert times.ranks == 2
    assert set(times.seconds) == {"all-reduce", "reduce-scatter", "all-gather"}
    assert all(tuple(found) == SIZES and min(found.values()) > 0.0 for found in times.seconds.values())
    assert times.compute_slowdown >= 1.0
    assert times.communication_slowdown >= 1.0


def test_a_cluster_costs_what_was_measured() -> None:
    seconds = {"all-reduce": {1000: 1e-3, 1000000: 5e-3}, "all-gather": {1000: 2e-3, 1000000: 3e-3}}
    times = LinkTimes(4, seconds, 1.25, 1.5)
    span = Span(4, 1, 4)
    cluster = Cluster("c", 1, 4, Device("cpu", "d", {"fp32": 1e9}), Links(intra=times.link(span)))
    assert cluster.all_reduce_s(1000, span) == pytest.approx(1e-3)
    assert cluster.all_reduce_s(1000000, span) == pytest.approx(5e-3)
    assert cluster.all_gather_s(1000000, span) == pytest.approx(3e-3)
    assert (times.sharing().compute_slowdown, times.sharing().communication_slowdown) == (1.25, 1.5)


def test_one_rank_has_nothing_to_measure() -> None:
    assert run(1, measure) == [LinkTimes(1)]


def exchange(world: World) -> list[torch.Tensor]:
    backend = backend_of(world.group(), torch.device("cpu"))
    flat = torch.arange(2.0 * world.size) + world.rank
    length = flat.numel() // world.size
    shard = flat[world.rank * length : (world.rank + 1) * length]
    collectives.reduce_scatter(backend, flat, shard, torch.empty_like(flat)).wait()
    mine = shard.clone()
    collectives.all_gather(backend, flat, shard).wait()
    return [mine.numpy(), flat.numpy()]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_reduce_scatter_and_all_gather_in_one_buffer(size: int) -> None:
    total = size * torch.arange(2.0 * size) + sum(range(size))
    for rank, (shard, whole) in enumerate(run(size, exchange)):
        assert torch.equal(torch.from_numpy(shard), total[2 * rank : 2 * rank + 2])
        assert torch.equal(torch.from_numpy(whole), total)
