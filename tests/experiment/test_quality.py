"""Curves at equal own time."""

from __future__ import annotations

import pytest

from orch.experiment.quality import at_time, block_time_s, smoothed, time_to


@pytest.mark.parametrize(
    ("when", "value"),
    [(0.0, 4.0), (1.0, 3.0), (0.5, 3.5), (2.0, 2.5), (3.0, 2.0), (3.1, None), (-0.1, None)],
)
def test_a_curve_is_read_between_its_points_and_nowhere_else(when, value) -> None:
    assert at_time([0.0, 1.0, 3.0], [4.0, 3.0, 2.0], when) == value


def test_rounding_at_the_end_is_no_gap() -> None:
    assert at_time([0.0, 0.3], [1.0, 2.0], 0.1 + 0.2) == 2.0
    assert at_time([], [], 1.0) is None


def test_a_smoothed_loss_is_a_mean_of_the_last_steps() -> None:
    assert smoothed([1.0, 3.0, 5.0, 7.0], window=2) == [1.0, 2.0, 4.0, 6.0]


def test_time_to_a_target_falling_rising_and_never() -> None:
    clock = [0.0, 1.0, 2.0]
    assert time_to(clock, [3.0, 2.0, 1.0], 2.0, falling=True) == 1.0
    assert time_to(clock, [0.1, 0.2, 0.9], 0.5, falling=False) == 2.0
    assert time_to(clock, [3.0, 2.0, 1.0], 0.5, falling=True) is None


def test_a_block_of_an_alternating_plan_is_timed_by_whole_periods() -> None:
    assert block_time_s([1.0, 3.0, 1.0, 3.0, 9.0], period=2) == 2.0
    assert block_time_s([1.0, 1.0, 5.0], period=1) == 1.0
    assert block_time_s([4.0], period=2) == 4.0
