"""Links measured by real processes: all kinds, sizes and ways, in the form a cluster holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from orch.cluster import Cluster, Device, Links, Span
from orch.cluster.sharing import BESIDE, STOLEN, WAYS
from orch.runtime import collectives
from orch.runtime.base import backend_of
from orch.runtime.links import QUEUED, SIZES, LinkTimes, measure_links, merge
from tests.runtime.worlds import World, run


def measure(world: World, most_bytes: int) -> LinkTimes:
    return measure_links(world.group(), most_bytes=most_bytes, budget_s=0.1)


def test_every_collective_in_every_way_up_to_the_size_asked_for() -> None:
    times = merge(run(2, measure, 40_000))
    assert times.ranks == 2
    assert set(times.seconds) == {QUEUED, *WAYS}
    for way, named in times.seconds.items():
        assert set(named) == {"all-reduce", "reduce-scatter", "all-gather"}
        for found in named.values():
            assert tuple(found) == (*SIZES[:2], 40_000)  # 32 KiB would say much the same as 40,000 bytes
            assert min(found.values()) >= 0.0
            assert way == STOLEN or min(found.values()) > 0.0
    assert times.lanes == 2


def test_a_cluster_costs_what_was_measured_in_each_way() -> None:
    queued = {"all-reduce": {1000: 1e-3, 1000000: 5e-3}, "all-gather": {1000: 2e-3, 1000000: 3e-3}}
    beside = {"all-reduce": {1000: 4e-3, 1000000: 9e-3}, "all-gather": {1000: 5e-3, 1000000: 6e-3}}
    times = LinkTimes(4, {QUEUED: queued, BESIDE: beside}, lanes=2)
    span = Span(4, 1, 4)
    device = Device("cpu", "d", {"fp32": 1e9})
    cluster = Cluster("c", 1, 4, device, Links(intra=times.link(span)), sharing=times.sharing())
    assert cluster.all_reduce_s(1000, span) == pytest.approx(1e-3)
    assert cluster.all_reduce_s(1000000, span) == pytest.approx(5e-3)
    assert cluster.all_gather_s(1000000, span) == pytest.approx(3e-3)
    assert cluster.in_way(BESIDE).all_reduce_s(1000000, span) == pytest.approx(9e-3)
    assert cluster.in_way(STOLEN).all_reduce_s(1000, span) == 0.0  # not measured, and no slowdown said
    assert cluster.sharing.lanes == 2


def with_another_size(seconds):
    return {way: {name: {**found, 16: 9.0} for name, found in named.items()} for way, named in seconds.items()}


def test_rounds_and_ranks_meet_in_the_middle_but_share_what_compute_loses() -> None:
    rounds = [
        LinkTimes(2, {QUEUED: {"all-reduce": {8: time}}, STOLEN: {"all-reduce": {8: time}}}, lanes=2)
        for time in (1.0, 2.0, 6.0)
    ]
    together = merge([*rounds[:2], replace(rounds[2], seconds=with_another_size(rounds[2].seconds))])
    assert together.seconds == {QUEUED: {"all-reduce": {8: 2.0}}, STOLEN: {"all-reduce": {8: 3.0}}}
    assert together.lanes == 2


def test_one_rank_has_nothing_to_measure() -> None:
    assert run(1, measure, 1 << 20) == [LinkTimes(1)]


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


def test_the_all_to_all_is_measured_where_rows_travel() -> None:
    for times in run(2, _with_rows):
        assert set(times.seconds["queued"]) == {"all-reduce", "reduce-scatter", "all-gather", "all-to-all"}


def _with_rows(world: World) -> LinkTimes:
    return measure_links(world.group(), most_bytes=1 << 15, budget_s=0.2, rows=True)
