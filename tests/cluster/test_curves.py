"""Curves: lines with knees, tables, and the fastest of several, on floats and arrays."""

from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.cluster.curves import Curve, Fastest, above_zero, larger, smaller

sizes = st.floats(1.0, 1e9)
tables = st.dictionaries(st.integers(1, 10**9), st.floats(0.0, 100.0), min_size=2, max_size=8)


def test_knee_changes_the_slope_above_it():
    curve = Curve(5.0, 1.0, ((10.0, 2.0),))
    assert [curve.seconds(n) for n in (0, 1, 10, 12)] == [0.0, 6.0, 15.0, 21.0]


def test_sum_of_parts_is_a_curve_again():
    whole = Curve(1.0, 2.0) + Curve(10.0, 4.0, ((8.0, 1.0),)).of_part(0.5)
    # The second hands over half: 10 + 4 * 10 + 1 * (10 - 8) for 20 bytes.
    assert whole.seconds(20.0) == (1 + 40) + (10 + 40 + 2)


def test_scaled_keeps_the_sizes_of_knees():
    assert Curve(1.0, 2.0, ((8.0, 1.0),)).scaled(3.0, 5.0).seconds(10.0) == 3.0 + 5.0 * (20.0 + 2.0)


@given(tables)
def test_table_passes_through_the_rising_times_nearest_to_its_points(table):
    curve, sizes = Curve.through(table), sorted(table)
    for place, size in enumerate(sizes):
        # Of least squares: the largest over beginnings of the smallest over ends of the means between them.
        nearest = max(
            min(fmean(table[one] for one in sizes[begin : end + 1]) for end in range(place, len(sizes)))
            for begin in range(place + 1)
        )
        assert curve.seconds(float(size)) == pytest.approx(nearest, rel=1e-6, abs=1e-6)


@given(tables, sizes, sizes)
def test_larger_messages_never_cost_less(table, first, second):
    curve = Curve.through(table)
    small, large = sorted((first, second))
    assert curve.seconds(small) <= curve.seconds(large) * (1 + 1e-6) + 1e-6
    assert curve.seconds(small) >= 0.0


def test_table_goes_on_with_its_last_slope_and_its_start_up():
    curve = Curve.through({10.0: 6.0, 20.0: 7.0, 30.0: 11.0})
    assert (curve.start_up_s, curve.seconds(1.0), curve.seconds(40.0)) == (5.0, pytest.approx(5.1), pytest.approx(15.0))


def test_flat_end_of_a_table_goes_on_with_the_mean_slope():
    curve = Curve.through({10.0: 6.0, 20.0: 7.5, 30.0: 6.5})  # the last two mean 7, and the first piece begins at 5
    assert curve.seconds(60.0) == pytest.approx(7.0 + 30.0 * (7.0 - 5.0) / 30.0)


def test_steep_start_of_a_table_has_no_negative_start_up():
    curve = Curve.through({10.0: 1.0, 20.0: 10.0})
    assert (curve.start_up_s, curve.seconds(5.0), curve.seconds(10.0)) == (0.0, 0.5, 1.0)


@pytest.mark.parametrize("table", [{}, {1.0: 1.0}, {0.0: 1.0, 2.0: 3.0}, {1.0: -1.0, 2.0: 1.0}])
def test_impossible_tables_are_refused(table):
    with pytest.raises(ValueError, match="at least two sizes above zero"):
        Curve.through(table)


def test_fastest_takes_the_least_at_every_size_exactly():
    slow_start, steep = Curve(9.0, 0.1), Curve(1.0, 1.0)
    fastest = Fastest((slow_start, steep))
    nbytes = np.array([0.0, 1.0, 8.0, 9.0, 100.0])
    expected = np.minimum(slow_start.seconds(nbytes), steep.seconds(nbytes))
    assert (fastest.seconds(nbytes) == expected).all()
    assert [fastest.seconds(float(n)) for n in nbytes] == expected.tolist()
    assert fastest.start_up_s == 1.0


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9))
def test_helpers_agree_on_floats_and_arrays(left, right):
    assert larger(np.array([left]), right)[0] == larger(left, right) == max(left, right)
    assert smaller(np.array([left]), right)[0] == smaller(left, right) == min(left, right)
    assert above_zero(np.array([left]))[0] == above_zero(left) == max(left, 0.0)


def test_a_fitted_line_has_neither_start_up_nor_slope_below_zero():
    assert Curve.fitted([(1.0, 3.0), (2.0, 5.0)]) == Curve(1.0, 2.0)
    assert Curve.fitted([(1.0, 5.0), (2.0, 3.0)]) == Curve(4.0, 0.0)
    falling = Curve.fitted([(1.0, 1.0), (2.0, 4.0)])
    assert (falling.start_up_s, falling.per_byte_s) == pytest.approx((0.0, 5.0 / 3.0))
    assert Curve.fitted([(0.0, 2.0)]) == Curve(2.0, 0.0)
    with pytest.raises(ValueError, match="a line needs a point"):
        Curve.fitted([])
