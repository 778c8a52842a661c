"""Two-level forms against hand calculations, a step-by-step ring, and the one-level forms."""

import numpy as np
import pytest

from orch.cluster import collectives as one
from orch.cluster import two_level as two
from orch.cluster.collectives import Level
from orch.cluster.span import Span
from orch.cluster.two_level import Network

INTRA, INTER = Level(10.0, 1.0, 0.0), Level(1000.0, 7.0, 0.0)
NODE = Network(INTRA, INTER, Span(12, 3, 4), per_node=True)
DEVICE = Network(INTRA, INTER, Span(12, 3, 4), per_node=False)

# 3 nodes of 4 ranks, 24 bytes; ai = 10, bi = 1, ae = 1000, be = 7 (per device: 7/4 leaves a node at once).
BY_HAND = [
    (two.flat_ring_all_reduce, NODE, 2 * (8 * 10 + 3 * 1000) + 2 * 22 * 7),
    (two.flat_ring_all_reduce, DEVICE, 2 * (8 * 10 + 3 * 1000) + 2 * 22 * 1.75),
    (two.flat_ring_reduce_scatter, NODE, 8 * 10 + 3 * 1000 + 22 * 7),
    (two.flat_ring_all_gather, NODE, 8 * 10 + 3 * 1000 + 22 * 7),
    (two.grid_all_reduce, NODE, 2 * (3 * 10 + 18) + 4 * 1000 + 2 * 16 * 7),
    (two.grid_all_reduce, DEVICE, 2 * (3 * 10 + 18) + 4 * 1000 + 2 * 4 * 7),
    (two.grid_reduce_scatter, NODE, 3 * 10 + 18 + 2 * 1000 + 16 * 7),
    (two.grid_all_gather, NODE, 3 * 10 + 18 + 2 * 1000 + 16 * 7),
    (two.leader_all_reduce, NODE, 2 * 2 * 10 + 2 * 24 + 4 * 1000 + 2 * 16 * 7),
    (two.tree_all_reduce, NODE, 4 * 10 + 4 * 24 + 4 * 1000 + 4 * 24 * 7),
    (two.double_tree_all_reduce, NODE, 4 * 10 + 4 * 1000 + 24 * 7),
    (two.nccl_tree_all_reduce, NODE, 2 * (3 * 10 + 2 * 1000) + 2 * 24 * 7),
    (two.doubling_all_reduce, NODE, 2 * 10 + 2 * 24 + 2 * 1000 + 2 * 24 * 28),
    (two.doubling_all_reduce, DEVICE, 2 * 10 + 2 * 24 + 2 * 1000 + 2 * 24 * 7),
    (two.halving_doubling_all_reduce, NODE, 2 * (2 * 10 + 18) + 4 * 1000 + 2 * 16 * 7),
    (two.halving_reduce_scatter, NODE, 2 * 10 + 18 + 2 * 1000 + 16 * 7),
    (two.doubling_all_gather, NODE, 2 * 10 + 18 + 2 * 1000 + 16 * 7),
    (two.binomial_broadcast, NODE, 2 * 10 + 2 * 24 + 2 * 1000 + 2 * 24 * 7),
    (two.pipelined_broadcast, NODE, 4 * 10 + 3 * 1000 + 24 * 7),
    (two.scatter_broadcast, NODE, 5 * 10 + 36 + 4 * 1000 + 2 * 16 * 7),
    (two.binomial_reduce, NODE, 2 * 10 + 2 * 24 + 2 * 1000 + 2 * 24 * 7),
    (two.pipelined_reduce, NODE, 4 * 10 + 3 * 1000 + 24 * 7),
    (two.scatter_reduce, NODE, 5 * 10 + 36 + 4 * 1000 + 2 * 16 * 7),
    (two.pairwise_all_to_all, NODE, 3 * 10 + 8 * 1000 + 24 * (3 / 12 + 4 * (2 / 3) * 7)),
    (two.pairwise_all_to_all, DEVICE, 3 * 10 + 8 * 1000 + 24 * (3 / 12 + (2 / 3) * 7)),
    (two.grid_all_to_all, NODE, 3 * 10 + 2 * 1000 + 24 * (3 / 4 + 4 * (2 / 3) * 7)),
    (two.bruck_all_to_all, NODE, 4 * 1000 + 4 * 12 * 28),
]


@pytest.mark.parametrize(("form", "net", "expected"), BY_HAND)
def test_hand_calculation(form, net, expected):
    assert form(net).seconds(24.0) == pytest.approx(expected, rel=1e-12)


def test_every_form_has_a_hand_calculation():
    public = {
        name
        for name, value in vars(two).items()
        if callable(value) and getattr(value, "__module__", "") == two.__name__ and not name.startswith("_")
    }
    assert public - {"Network"} == {form.__name__ for form, _, _ in BY_HAND}


def ring_with_busy_links(net, nbytes, halves=2):
    """A ring, node by node: a chunk goes on once it has come and the link to the next rank is free."""
    size, inner = net.span.size, net.span.per_node
    chunk = nbytes / size
    links = [net.intra if (rank + 1) % inner else net.inter for rank in range(size)]
    have, free = [0.0] * size, [0.0] * size
    for _ in range(halves * (size - 1)):
        begin = [max(have[rank], free[rank]) for rank in range(size)]
        free = [begin[rank] + chunk * links[rank].beta_s_per_byte for rank in range(size)]
        come = [free[rank] + links[rank].alpha_s for rank in range(size)]
        have = [come[rank - 1] for rank in range(size)]
    return max(have)


@pytest.mark.parametrize("span", [Span(12, 3, 4), Span(12, 4, 3), Span(32, 4, 8)])
def test_flat_ring_equals_its_simulation_where_start_ups_rule(span):
    net = Network(Level(10.0, 0.0), Level(1000.0, 0.0), span, per_node=True)
    assert two.flat_ring_all_reduce(net).seconds(1.0) == pytest.approx(ring_with_busy_links(net, 1.0), rel=1e-12)


@pytest.mark.parametrize("span", [Span(12, 3, 4), Span(12, 4, 3), Span(32, 4, 8)])
def test_flat_ring_equals_its_simulation_where_bytes_rule(span):
    net = Network(Level(0.0, 1.0), Level(0.0, 7.0), span, per_node=True)
    assert two.flat_ring_all_reduce(net).seconds(960.0) == pytest.approx(ring_with_busy_links(net, 960.0), rel=1e-12)


def test_flat_ring_is_no_faster_than_its_simulation_in_between():
    simulated = ring_with_busy_links(NODE, 9600.0)
    assert simulated * (1 - 1e-12) <= two.flat_ring_all_reduce(NODE).seconds(9600.0) <= 1.5 * simulated


def test_levels_that_are_alike_make_the_one_level_ring():
    level = Level(5.0, 2.0, 0.5)
    net = Network(level, level, Span(12, 3, 4), per_node=True)
    assert two.flat_ring_all_reduce(net).seconds(99.0) == pytest.approx(one.ring_all_reduce(level, 12).seconds(99.0))


@pytest.mark.parametrize("net", [NODE, DEVICE])
def test_halves_make_the_whole(net):
    for halves, whole in [
        ((two.flat_ring_reduce_scatter, two.flat_ring_all_gather), two.flat_ring_all_reduce),
        ((two.grid_reduce_scatter, two.grid_all_gather), two.grid_all_reduce),
        ((two.halving_reduce_scatter, two.doubling_all_gather), two.halving_doubling_all_reduce),
    ]:
        apart = sum(half(net).seconds(1234.0) for half in halves)
        assert apart == pytest.approx(whole(net).seconds(1234.0), rel=1e-12)


def test_sorting_inside_the_node_saves_messages_and_no_outer_bytes():
    flat, grid = two.pairwise_all_to_all(NODE), two.grid_all_to_all(NODE)
    assert grid.start_up_s < flat.start_up_s
    assert grid.per_byte_s > flat.per_byte_s


@pytest.mark.parametrize("form", [form for form, _, _ in BY_HAND])
def test_arrays_broadcast(form):
    beta = np.array([1.0, 7.0, 9.0])
    net = Network(INTRA, Level(1000.0, beta), Span(12, 3, 4), per_node=True)
    many = form(net).seconds(24.0)
    for index, value in enumerate(beta):
        alone = form(Network(INTRA, Level(1000.0, float(value)), Span(12, 3, 4), per_node=True))
        assert many[index] == pytest.approx(alone.seconds(24.0), rel=1e-12)
