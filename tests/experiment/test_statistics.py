"""Intervals that cover what they promise, honest refusals to see a difference, and fair orders of blocks."""

import math
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.experiment import statistics
from orch.experiment.statistics import (
    block_orders,
    blocks_needed,
    compare,
    compare_all,
    compare_apart,
    outliers,
    summary,
)

BASELINE = [1.30, 1.35, 1.40, 1.33, 1.37, 1.36, 1.34, 1.35]


def noisy(rng, blocks, speedup, noise, drift):
    """Times of a baseline and a stack whose blocks share a drift and have a noise of their own."""
    shared = rng.normal(0.0, drift, blocks)
    baseline = np.exp(shared + rng.normal(0.0, noise, blocks))
    stack = np.exp(shared + rng.normal(0.0, noise, blocks)) / speedup
    return baseline.tolist(), stack.tolist()


@pytest.mark.parametrize("blocks", [3, 8])
def test_95_percent_intervals_cover_95_percent(blocks):
    rng = np.random.default_rng(blocks)
    trials = 2500
    covered = 0
    for _ in range(trials):
        found = compare(*noisy(rng, blocks, 1.2, 0.03, 0.3))
        covered += found.lo <= 1.2 <= found.hi
    assert covered / trials == pytest.approx(0.95, abs=0.02)


def test_several_stacks_are_covered_together():
    rng = np.random.default_rng(7)
    trials, together = 1000, 0
    for _ in range(trials):
        shared = rng.normal(0.0, 0.3, 6)
        times = {name: np.exp(shared + rng.normal(0.0, 0.03, 6)).tolist() for name in "abcde"}
        found = compare_all(times, "a")
        assert list(found) == ["b", "c", "d", "e"]
        together += all(speedup.lo <= 1.0 <= speedup.hi for speedup in found.values())
    # Bonferroni is exact or a little wide where comparisons share their baseline.
    assert 0.94 <= together / trials <= 0.985


def test_a_clear_gain_reads_as_one():
    ratios = [1.33, 1.37, 1.34, 1.36, 1.32, 1.38, 1.35, 1.35]
    found = compare(BASELINE, [time / ratio for time, ratio in zip(BASELINE, ratios, strict=True)], over="ddp")
    assert found.distinguishable
    assert str(found) == "1.35 [1.33, 1.37], n=8"
    assert found.to_json() == {
        "over": "ddp",
        "median": pytest.approx(1.35),
        "lo": pytest.approx(1.333, abs=1e-3),
        "hi": pytest.approx(1.367, abs=1e-3),
        "level": 0.95,
        "n": 8,
        "method": "paired t on log ratios per block",
        "distinguishable": True,
    }


def test_hand_calculation():
    """Log ratios 0.1, 0.2, 0.3: mean 0.2, standard error 0.1/sqrt 3, t(0.975, 2) = 4.3027."""
    found = compare([math.exp(0.1), math.exp(0.2), math.exp(0.3)], [1.0, 1.0, 1.0])
    half = 4.30265273 * 0.1 / math.sqrt(3)
    assert (found.lo, found.hi) == (pytest.approx(math.exp(0.2 - half)), pytest.approx(math.exp(0.2 + half)))
    assert found.median == pytest.approx(math.exp(0.2))
    assert not found.distinguishable


def test_noise_is_not_a_gain_and_says_what_would_be_needed():
    found = compare([1.00, 1.04, 0.97, 1.01, 0.98, 1.03, 1.02, 0.95], [1.01, 1.00, 1.00, 0.99, 1.01, 0.98, 1.0, 1.0])
    assert not found.distinguishable
    needed = found.blocks_needed_for_1_percent
    assert str(found) == f"not distinguishable (n=8; a 1 % gain would need about {needed} blocks)"
    assert 50 < needed < 200


def test_one_block_has_no_interval():
    found = compare([2.0], [1.0])
    assert (found.median, found.lo, found.hi, found.distinguishable) == (2.0, None, None, False)
    assert str(found) == "not distinguishable (n=1; an interval needs at least 2 blocks)"


def test_more_comparisons_widen_the_interval():
    stack = [time / 1.1 + 0.01 * index for index, time in enumerate(BASELINE)]
    one, four = compare(BASELINE, stack), compare(BASELINE, stack, comparisons=4)
    assert four.lo < one.lo < one.hi < four.hi
    assert four.method == "paired t on log ratios per block, Bonferroni over 4"
    assert four.blocks_needed_for_1_percent > one.blocks_needed_for_1_percent


@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)), min_size=2, max_size=12))
def test_median_lies_in_its_interval_and_swapping_inverts(pairs):
    baseline, stack = zip(*pairs, strict=True)
    found, swapped = compare(baseline, stack), compare(stack, baseline)
    assert found.lo <= found.median <= found.hi
    assert swapped.lo == pytest.approx(1 / found.hi, rel=1e-6)
    assert swapped.median == pytest.approx(1 / found.median, rel=1e-6)


def test_needed_blocks_show_the_gain_four_times_in_five():
    rng = np.random.default_rng(3)
    noise = 0.02 / math.sqrt(2)
    blocks = blocks_needed(0.02)
    seen = sum(compare(*noisy(rng, blocks, 1.01, noise, 0.2)).distinguishable for _ in range(1500))
    assert seen / 1500 == pytest.approx(0.8, abs=0.04)


def test_needed_blocks_at_the_ends():
    assert blocks_needed(0.0) == 2
    assert blocks_needed(50.0) is None
    assert "more than 100,000 blocks" in str(compare([1.0, 1e9, 1.0], [1.0, 1.0, 1e9]))


def test_outliers_are_named_and_kept():
    stack = [time / 1.2 * (1 + 0.001 * (-1) ** index) for index, time in enumerate(BASELINE)]
    stack[5] *= 2
    found = compare(BASELINE, stack)
    assert found.outliers == (5,)
    assert found.n == 8
    assert str(found).endswith("; far from the others: block 6")


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1.0, 1.0, 9.0], ()), ([1.0] * 6, ()), ([1.0] * 7 + [9.0], (7,)), ([1.0, 1.1, 0.9, 1.05, 0.95, 1.3], ())],
)
def test_outliers_need_a_crowd_to_stand_out_from(values, expected):
    assert outliers(values) == expected


def test_summary_is_the_median_and_an_interval():
    found = summary(BASELINE)
    assert (found.median, found.n) == (pytest.approx(math.sqrt(1.35 * 1.35)), 8)
    assert 1.32 < found.lo < found.median < found.hi < 1.38
    assert (summary([0.5]).lo, summary([0.5]).median) == (None, 0.5)


@pytest.mark.parametrize(
    ("baseline", "stack", "message"),
    [
        ([1.0, 2.0], [1.0], "blocks are not paired: 2 of the baseline, 1 of the stack"),
        ([], [], "no blocks were measured"),
        ([1.0, 0.0], [1.0, 1.0], "block 1 took 0.0 s; a time is finite and above 0"),
        ([1.0], [math.nan], "block 0 took nan s"),
    ],
)
def test_impossible_times_are_refused(baseline, stack, message):
    with pytest.raises(ValueError, match=message):
        compare(baseline, stack)


@given(st.integers(1, 7), st.integers(0, 40), st.integers(0, 99))
def test_orders_are_balanced_permutations(count, blocks, seed):
    stacks = [f"stack{index}" for index in range(count)]
    orders = block_orders(stacks, blocks, seed)
    assert orders == block_orders(stacks, blocks, seed)
    assert len(orders) == blocks
    assert all(sorted(order) == stacks for order in orders)
    for place in range(count):
        found = Counter(order[place] for order in orders)
        often = [found[name] for name in stacks]
        assert max(often) - min(often) <= 1


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
def test_everyone_follows_everyone_equally_often(count):
    stacks = [f"stack{index}" for index in range(count)]
    orders = block_orders(stacks, 2 * count, seed=5)
    followers = Counter(pair for order in orders for pair in pairwise(order))
    assert set(followers.values()) == {2}
    assert len(followers) == count * (count - 1)


def test_seeds_shuffle():
    orders = {tuple(map(tuple, block_orders("abcd", 8, seed))) for seed in range(20)}
    assert len(orders) == 20


def test_scipy_is_loaded_only_for_intervals():
    code = "import sys, orch.experiment.statistics as s; s.block_orders('ab', 2, 0); print('scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert statistics.METHOD


@pytest.mark.parametrize(("blocks", "others"), [(3, 3), (8, 5)])
def test_intervals_of_blocks_that_share_nothing_cover_95_percent_too(blocks, others):
    rng = np.random.default_rng(blocks)
    inside = 0
    for _ in range(2000):
        base = np.exp(rng.normal(0.0, 0.05, blocks))
        own = np.exp(rng.normal(0.0, 0.02, others)) / 1.3
        found = compare_apart(base.tolist(), own.tolist())
        inside += found.lo <= 1.3 <= found.hi
    assert 0.93 <= inside / 2000 <= 0.99


def test_blocks_that_share_nothing_need_no_equal_number_and_two_each():
    found = compare_apart([2.0, 2.0, 2.0], [1.0, 1.0])
    assert (found.lo, found.median, found.hi) == pytest.approx((2.0, 2.0, 2.0))
    assert "Welch" in found.method
    alone = compare_apart([2.0], [1.0, 1.0])
    assert (alone.lo, alone.hi, alone.distinguishable) == (None, None, False)
