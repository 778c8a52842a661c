"""A cluster as a value: costs by span, refusals, bases, bands and variants."""

import pickle

import numpy as np
import pytest

from orch.cluster import FREE, Bands, Basis, Cluster, Device, Level, Link, Links, Span
from orch.errors import OrchError

INTRA = Link(Level(1e-5, 1e-10), per_node=False, source="example")
INTER = Link(Level(5e-5, 8e-10), source="example")
GPU = Device("gpu", "example", {"fp32": 1e13}, 5e11, owner="example")
CLUSTER = Cluster("example", 4, 8, GPU, Links(INTRA, INTER))
BARE = Cluster("local-4", 1, 4, GPU)
COSTS = [
    "all_reduce_s",
    "reduce_scatter_s",
    "all_gather_s",
    "all_to_all_s",
    "broadcast_s",
    "reduce_s",
    "point_to_point_s",
]


def test_ranks_are_numbered_node_by_node():
    assert CLUSTER.world_size == 32
    assert CLUSTER.span() == CLUSTER.world == Span(32, 4, 8)
    assert CLUSTER.span(range(8)) == Span(8, 1, 8)
    assert CLUSTER.span([0, 8, 16, 24]) == Span(4, 4, 1)


def test_the_link_follows_from_the_span():
    inner = CLUSTER.all_reduce_s(8e6, CLUSTER.span(range(8)))
    outer = CLUSTER.all_reduce_s(8e6, CLUSTER.span([0, 8, 16, 24]))
    assert inner == pytest.approx(14 * 1e-5 + 2 * 7e6 * 1e-10)
    assert outer == pytest.approx(6 * 5e-5 + 2 * 6e6 * 8e-10)


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("ranks", [[5], range(2), [0, 31], range(32), range(5, 14)])
def test_costs_broadcast_grow_and_vanish(cost, ranks):
    span = CLUSTER.span(ranks)
    times = getattr(CLUSTER, cost)(np.array([0.0, 1.0, 1e3, 1e8]), span)
    assert times.shape == (4,)
    assert times[0] == 0.0
    if span.size == 1:
        assert not times.any()
    else:
        assert (np.diff(times) > 0).all()
        assert getattr(CLUSTER, cost)(1e3, span) == times[2]


@pytest.mark.parametrize("cost", COSTS)
def test_one_rank_costs_nothing_even_where_no_link_is_described(cost):
    assert getattr(BARE, cost)(1e9, Span(1)) == 0.0


@pytest.mark.parametrize("cost", COSTS)
def test_undescribed_links_are_refused_with_the_way_out(cost):
    with pytest.raises(OrchError) as caught:
        getattr(BARE, cost)(1.0, BARE.world)
    assert str(caught.value) == (
        "cluster local-4: links.intra is not described, and 4 ranks on 1 node need it; describe it, for example "
        "links: {intra: {alpha: 10us, bandwidth: 10GB/s, source: ...}}, or name a described cluster "
        "(orch list clusters) [E301]"
    )


def test_the_inner_link_is_needed_where_the_outer_one_was_not_measured_as_a_whole():
    cluster = Cluster("half", 2, 4, GPU, Links(None, INTER))
    assert cluster.all_reduce_s(1e6, cluster.span([0, 4])) > 0
    with pytest.raises(OrchError, match=r"cluster half: links\.intra is not described, and 8 ranks on 2 nodes need it"):
        cluster.all_reduce_s(1e6, cluster.world)
    whole = cluster.with_links(inter=Link.from_tables({"all-reduce": {1.0: 1.0, 2.0: 2.0}}, cluster.world, "this run"))
    assert whole.all_reduce_s(2.0, cluster.world) == 2.0
    with pytest.raises(OrchError, match=r"links\.intra is not described"):
        whole.all_reduce_s(2.0, cluster.world, "two-level")


def test_algorithm_of_a_call_overrides_the_file():
    assert CLUSTER.all_reduce_s(1e8, CLUSTER.world, "leader") != CLUSTER.all_reduce_s(1e8, CLUSTER.world)


def test_free_communication_is_free_and_computing_is_not():
    free = CLUSTER.communication_free()
    for cost in COSTS:
        assert getattr(free, cost)(1e9, free.world) == 0.0
    assert free.device == CLUSTER.device
    assert free.basis() == Basis("free", 1.0, FREE.source)
    assert BARE.communication_free().all_reduce_s(1e9, BARE.world) == 0.0


def test_scaled_makes_a_variant_an_entry():
    draws = np.array([0.5, 1.0, 2.0])
    variants = CLUSTER.scaled(start_up=draws, compute=draws)
    base = CLUSTER.curve("all-reduce", CLUSTER.world)
    times = variants.all_reduce_s(1e6, CLUSTER.world)
    assert times == pytest.approx([d * base.start_up_s + base.per_byte_s * 1e6 for d in draws])
    assert variants.device.compute_s(1e13) == pytest.approx(draws)


def test_with_links_keeps_what_is_not_given():
    faster = CLUSTER.with_links(inter=Link(Level(0.0, 1e-12)))
    assert faster.links.intra is INTRA
    assert faster.all_reduce_s(1e8, CLUSTER.world) < CLUSTER.all_reduce_s(1e8, CLUSTER.world)


def test_basis_and_bands():
    assert str(CLUSTER.basis()) == "nameplate"
    assert CLUSTER.basis(Span(1)) == Basis("free")
    assert CLUSTER.bands() == Bands(0.5, 0.3, 0.4)
    assert CLUSTER.bands(Span(1)) == Bands(0.0, 0.0, 0.4)


def test_speeds_are_one_unless_said():
    slow = Cluster("slow", 1, 4, GPU, speed={2: 0.5})
    assert (slow.uneven, slow.speeds()) == (True, [1.0, 1.0, 0.5, 1.0])
    assert not CLUSTER.uneven


def test_it_crosses_process_boundaries():
    CLUSTER.all_reduce_s(1.0, CLUSTER.world)
    assert pickle.loads(pickle.dumps(CLUSTER)) == CLUSTER
