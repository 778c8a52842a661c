"""The one-level closed forms against hand calculations, against simulations step by step, and against one another."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.cluster import collectives as forms
from orch.cluster.collectives import Level

UNIT = Level(alpha_s=1000.0, beta_s_per_byte=10.0, gamma_s_per_byte=1.0)
EVERY_FORM = [
    getattr(forms, name)
    for name in dir(forms)
    if name.endswith(("all_reduce", "scatter", "gather", "broadcast", "reduce", "all_to_all"))
]

# alpha 1000 s, beta 10 s/B, gamma 1 s/B, 24 bytes: calculated on paper from the number of rounds and the bytes in each.
BY_HAND = [
    (forms.ring_all_reduce, 4, 6 * 1000 + 2 * 18 * 10 + 18),
    (forms.ring_all_reduce, 3, 4 * 1000 + 2 * 16 * 10 + 16),
    (forms.tree_all_reduce, 4, 4 * 1000 + 4 * 24 * 10 + 2 * 24),
    (forms.tree_all_reduce, 5, 6 * 1000 + 6 * 24 * 10 + 3 * 24),
    (forms.double_tree_all_reduce, 8, 6 * 1000 + 24 * 10 + 24),
    (forms.nccl_tree_all_reduce, 8, 6 * 1000 + 2 * 24 * 10),
    (forms.doubling_all_reduce, 8, 3 * 1000 + 3 * 24 * 10 + 3 * 24),
    (forms.halving_doubling_all_reduce, 8, 6 * 1000 + 2 * 21 * 10 + 21),
    (forms.ring_reduce_scatter, 6, 5 * 1000 + 20 * 10 + 20),
    (forms.halving_reduce_scatter, 8, 3 * 1000 + 21 * 10 + 21),
    (forms.ring_all_gather, 6, 5 * 1000 + 20 * 10),
    (forms.doubling_all_gather, 8, 3 * 1000 + 21 * 10),
    (forms.binomial_broadcast, 6, 3 * 1000 + 3 * 24 * 10),
    (forms.pipelined_broadcast, 6, 6 * 1000 + 24 * 10),
    (forms.scatter_broadcast, 6, 8 * 1000 + 2 * 20 * 10),
    (forms.binomial_reduce, 6, 3 * 1000 + 3 * 24 * 10 + 3 * 24),
    (forms.pipelined_reduce, 6, 6 * 1000 + 24 * 10 + 24),
    (forms.scatter_reduce, 6, 8 * 1000 + 2 * 20 * 10 + 20),
    (forms.pairwise_all_to_all, 6, 5 * 1000 + 20 * 10),
    (forms.bruck_all_to_all, 8, 3 * 1000 + 3 * 12 * 10),
]


@pytest.mark.parametrize(("form", "ranks", "expected"), BY_HAND)
def test_hand_calculation(form, ranks, expected):
    assert form(UNIT, ranks).seconds(24) == pytest.approx(expected, rel=1e-12)


def test_every_form_has_a_hand_calculation():
    assert {form for form, _, _ in BY_HAND} == set(EVERY_FORM)


@pytest.mark.parametrize("form", EVERY_FORM)
def test_one_rank_and_no_bytes_cost_nothing(form):
    assert form(UNIT, 1).seconds(1e9) == 0.0
    assert form(UNIT, 7).seconds(0) == 0.0


@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 16, 33])
def test_ring_halves_make_the_whole(ranks):
    halves = forms.ring_reduce_scatter(UNIT, ranks) + forms.ring_all_gather(UNIT, ranks)
    whole = forms.ring_all_reduce(UNIT, ranks)
    assert halves.seconds(12345.0) == pytest.approx(whole.seconds(12345.0), rel=1e-12)


@given(
    form=st.sampled_from(EVERY_FORM),
    ranks=st.integers(2, 70),
    first=st.floats(1.0, 1e9),
    second=st.floats(1.0, 1e9),
    alpha=st.floats(0.0, 1e-2),
    beta=st.floats(0.0, 1e-7),
)
def test_merging_two_messages_saves_one_start_up(form, ranks, first, second, alpha, beta):
    curve = form(Level(alpha, beta, beta / 4), ranks)
    apart = curve.seconds(first) + curve.seconds(second)
    assert apart == pytest.approx(curve.seconds(first + second) + curve.start_up_s, rel=1e-9)
    assert curve.seconds(first + second) >= max(curve.seconds(first), curve.seconds(second))


@given(form=st.sampled_from(EVERY_FORM), ranks=st.integers(1, 70))
def test_more_ranks_never_cost_less(form, ranks):
    assert form(UNIT, ranks + 1).seconds(1e6) >= form(UNIT, ranks).seconds(1e6) * (1 - 1e-12)


@pytest.mark.parametrize("form", EVERY_FORM)
def test_arrays_broadcast_over_alpha_beta_and_bytes(form):
    alpha = np.array([1.0, 2.0, 3.0])[:, None]
    nbytes = np.array([0.0, 8.0, 1e6, 3e7])
    table = form(Level(alpha, 0.5, 0.25), 6).seconds(nbytes)
    assert table.shape == (3, 4)
    for row, column in itertools.product(range(3), range(4)):
        alone = form(Level(float(alpha[row, 0]), 0.5, 0.25), 6).seconds(float(nbytes[column]))
        assert table[row, column] == pytest.approx(alone, rel=1e-12)


def ring_step_by_step(level, ranks, nbytes):
    """All-reduce on a ring with a clock for every rank: a chunk is received, then added, then passed on."""
    clock = [0.0] * ranks
    chunk = nbytes / ranks
    for step in range(2 * (ranks - 1)):
        adding = chunk * level.gamma_s_per_byte if step < ranks - 1 else 0.0
        sent = [start + level.alpha_s + chunk * level.beta_s_per_byte for start in clock]
        clock = [max(clock[rank], sent[rank - 1]) + adding for rank in range(ranks)]
    return max(clock)


def halving_doubling_step_by_step(level, ranks, nbytes):
    """Recursive halving, then doubling, with a clock for every rank and the bytes really exchanged in each round."""
    clock = [0.0] * ranks
    distances = [ranks >> (level_of + 1) for level_of in range(ranks.bit_length() - 1)]
    held = nbytes
    for distance in distances:
        held /= 2
        met = [max(clock[rank], clock[rank ^ distance]) for rank in range(ranks)]
        clock = [start + level.alpha_s + held * (level.beta_s_per_byte + level.gamma_s_per_byte) for start in met]
    for distance in reversed(distances):
        met = [max(clock[rank], clock[rank ^ distance]) for rank in range(ranks)]
        clock = [start + level.alpha_s + held * level.beta_s_per_byte for start in met]
        held *= 2
    assert held == nbytes
    return max(clock)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 16])
def test_ring_equals_its_simulation(ranks):
    expected = ring_step_by_step(UNIT, ranks, 5040.0)
    assert forms.ring_all_reduce(UNIT, ranks).seconds(5040.0) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("ranks", [2, 4, 8, 32])
def test_halving_doubling_equals_its_simulation(ranks):
    expected = halving_doubling_step_by_step(UNIT, ranks, 4096.0)
    assert forms.halving_doubling_all_reduce(UNIT, ranks).seconds(4096.0) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("nodes", [8, 16, 32, 64])
def test_mg_wfbp_k80_constants(nodes):
    """MG-WFBP's simulator: 45.25 us, 1.2 over 9 Gib/s, 2.5e-9 s/B; a = 2 N alpha, b = (2 beta + gamma)(N-1)/N."""
    alpha, beta, gamma = 45.25e-6, 1.2 / (9 * 2**30 / 8), 2.5e-9
    curve = forms.ring_all_reduce(Level(alpha, beta, gamma), nodes)
    assert curve.per_byte_s == pytest.approx((2 * beta + gamma) * (nodes - 1) / nodes, rel=1e-12)
    # The authors count 2N start-ups where a ring has 2(N-1).
    assert curve.start_up_s == pytest.approx(2 * nodes * alpha * (nodes - 1) / nodes, rel=1e-12)
