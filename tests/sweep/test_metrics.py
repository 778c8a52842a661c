"""Better, bounded, dominated: what a trial is judged by."""

from __future__ import annotations

import math

import pytest

from orch.sweep.metrics import Constraint, InfeasibleError, Objective, Sought, checked, key

TIME, SPEED = Objective("step_time", False), Objective("throughput", True)


def test_a_key_has_its_unit() -> None:
    names = ("step_time", "throughput", "memory", "val_loss")
    assert [key(name) for name in names] == ["step_time_s", "throughput_samples_per_s", "memory_bytes", "val_loss"]


def test_a_gain_is_above_1_where_the_best_is_better() -> None:
    assert TIME.gain(best=0.5, baseline=1.0) == 2.0
    assert SPEED.gain(best=300.0, baseline=200.0) == 1.5
    assert Objective("val_loss", False).gain(best=0.25, baseline=1.0) == 0.75
    assert Objective("val_accuracy", True).gain(best=0.5, baseline=0.75) == -0.25
    assert TIME.gain(best=0.0, baseline=1.0) == math.inf


def test_a_violation_is_a_share_of_the_bound() -> None:
    bound = Constraint("memory", 100.0, at_most=True)
    assert (bound.violation(150.0), bound.violation(100.0), bound.violation(50.0)) == (0.5, 0.0, -0.5)
    assert Constraint("val_accuracy", 0.8, at_most=False).violation(0.6) == pytest.approx(0.25)
    assert Constraint("payload", 0.0, at_most=True).violation(3.0) == 3.0


def test_a_front_holds_what_nothing_dominates_each_point_once() -> None:
    sought = Sought((TIME, SPEED))
    points = [[1.0, 10.0], [2.0, 20.0], [2.0, 10.0], [1.0, 10.0], [3.0, 20.0]]
    assert sought.front(points) == [0, 1]
    assert sought.dominates([1.0, 10.0], [2.0, 10.0])
    assert not sought.dominates([1.0, 10.0], [1.0, 10.0])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_sampler_never_learns_from_what_is_no_number(value: float) -> None:
    with pytest.raises(InfeasibleError, match=rf"^loss is {value}$"):
        checked({"step_time": 1.0, "loss": value})
    assert checked({"loss": 1.0}) == {"loss": 1.0}


def test_metrics_are_named_once() -> None:
    sought = Sought((TIME,), (Constraint("step_time", 1.0, True), Constraint("val_loss", 2.0, True)))
    assert sought.metrics == ("step_time", "val_loss")
    assert sought.learned == ("val_loss",)
    assert sought.to_json() == {
        "objectives": {"step_time": "minimize"},
        "constraints": ["step_time at most 1", "val_loss at most 2"],
    }
