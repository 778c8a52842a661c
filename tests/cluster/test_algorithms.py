"""Names of algorithms: which form they take, what a library without a form falls back on, and unknown names."""

import pytest

from orch.cluster import algorithms
from orch.cluster import collectives as one
from orch.cluster.collectives import Level
from orch.cluster.span import Span
from orch.cluster.two_level import Network
from orch.errors import OrchError

LEVEL = Level(1e-5, 1e-9, 1e-10)


@pytest.mark.parametrize("collective", algorithms.COLLECTIVES)
@pytest.mark.parametrize("algorithm", algorithms.ALGORITHMS)
def test_every_algorithm_serves_every_collective(collective, algorithm):
    net = Network(LEVEL, LEVEL, Span(8, 2, 4), per_node=True)
    assert algorithms.one_level(collective, algorithm, LEVEL, 8).seconds(1e6) > 0
    assert algorithms.two_levels(collective, algorithm, net).seconds(1e6) > 0
    assert algorithms.one_level(collective, algorithm, LEVEL, 1).seconds(1e6) == 0


def test_a_library_of_trees_reduce_scatters_on_a_ring():
    assert algorithms.one_level("reduce-scatter", "nccl-tree", LEVEL, 8) == one.ring_reduce_scatter(LEVEL, 8)


def test_auto_takes_the_faster_of_ring_and_tree_at_every_size():
    auto = algorithms.one_level("all-reduce", "auto", LEVEL, 64)
    tree, ring = one.nccl_tree_all_reduce(LEVEL, 64), one.ring_all_reduce(Level(1e-5, 1e-9, 1e-10), 64)
    assert auto.seconds(1e3) == tree.seconds(1e3) < ring.seconds(1e3)
    free_adding = Level(1e-5, 1e-9)
    auto = algorithms.one_level("all-reduce", "auto", free_adding, 64)
    assert auto.seconds(1e9) == one.ring_all_reduce(free_adding, 64).seconds(1e9)


def test_one_rank_on_each_node_uses_the_outer_level_alone():
    net = Network(LEVEL, Level(1e-3, 1e-8), Span(4, 4, 1), per_node=True)
    assert algorithms.two_levels("all-reduce", "ring", net) == one.ring_all_reduce(net.inter, 4)


@pytest.mark.parametrize(
    ("collective", "algorithm", "message"),
    [
        ("allreduce", "ring", "collective 'allreduce' is not known; did you mean all-reduce? [E305]"),
        ("all-reduce", "rings", "algorithm 'rings' of all-reduce is not known; did you mean ring? [E305]"),
        ("all-to-all", "brucks", "algorithm 'brucks' of all-to-all is not known; did you mean bruck? [E305]"),
    ],
)
def test_unknown_names(collective, algorithm, message):
    with pytest.raises(OrchError) as caught:
        algorithms.forms(collective, algorithm)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("algorithm", "span", "expected"),
    [
        ("ring", Span(16, 16, 1), (30, 30 / 16)),
        ("ring", Span(16, 4, 4), (30, 30 / 16)),
        ("auto", Span(16, 4, 4), (30, 30 / 16)),
        ("double-binary-tree", Span(16, 4, 4), (8, 1)),
        ("double-binary-tree", Span(16, 1, 16), (8, 1)),
        ("recursive-doubling", Span(8, 1, 8), (3, 3)),
    ],
)
def test_factors_count_start_ups_and_bytes(algorithm, span, expected):
    assert algorithms.factors("all-reduce", algorithm, span) == pytest.approx(expected)
