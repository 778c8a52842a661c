"""Prediction against measurement, by hand-computed cases."""

from __future__ import annotations

import pytest

from orch.sweep.agreement import agreement, rank_correlation
from orch.sweep.metrics import Objective
from orch.sweep.study import About, Record

TIME = Objective("step_time", False)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ([1, 2, 3], [10, 20, 30], 1.0),
        ([1, 2, 3], [30, 20, 10], -1.0),
        ([1, 2, 3, 4], [1, 3, 2, 4], 0.8),
        ([1, 1, 2], [1, 2, 3], 0.8660254),
        ([1, 1], [1, 2], None),
    ],
)
def test_ranks(left: list[float], right: list[float], expected: float | None) -> None:
    found = rank_correlation(left, right)
    assert found == (None if expected is None else pytest.approx(expected))


def test_what_was_predicted_stands_beside_what_was_measured() -> None:
    records = [
        Record(0, "complete", {}, About("complete", {"step_time": 2.0}), {"step_time": 1.0}),
        Record(1, "complete", {}, About("complete", {"step_time": 4.0}), {"step_time": 3.0}),
        Record(2, "failed", {}, About("failed"), {"step_time": 3.0}),
        Record(3, "complete", {}, About("complete", {"step_time": 9.0})),
    ]
    found = agreement(records, TIME)
    assert found is not None
    assert found["median_error"] == pytest.approx(0.375)
    assert found["rank_correlation"] == pytest.approx(1.0)
    assert [trial["number"] for trial in found["trials"]] == [0, 1]
    assert agreement(records[3:], TIME) is None
