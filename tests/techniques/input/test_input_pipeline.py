"""Reading and copying of batches: the worked example of the DAG model's brief, and what runs refuse."""

from __future__ import annotations

import pytest

from orch.plan import Fixed
from orch.testing.small import cluster, member, planned, profile, step_time_s
from techniques.input import input_pipeline
from techniques.schedules import bucketed, s_sgd, wfbp

LOOKUP = {"bucketed": bucketed.technique}
# Two layers: forward 1 s, backward 2 s, communication 3 s each; a batch is read in 1 s and copied in 1 s.
MODEL = profile([(1,), (1,)], [2.0] * 2, [1.0] * 2)


def step_s(schedule, ahead: str, read: str = "1s", to_device: str = "1s") -> float:
    where = cluster(2, alpha_s=3.0)
    fed = member(input_pipeline.technique, read=read, to_device=to_device, ahead=ahead)
    return step_time_s(planned(MODEL, where, [member(schedule), fed], LOOKUP), where)


@pytest.mark.parametrize(
    ("schedule", "ahead", "expected"),
    [
        (s_sgd.technique, "nothing", 14.0),
        (s_sgd.technique, "read", 13.0),
        (s_sgd.technique, "copy", 12.0),
        (wfbp.technique, "nothing", 12.0),
        (wfbp.technique, "read", 11.0),
        (wfbp.technique, "copy", 10.0),
    ],
)
def test_worked_example_of_the_brief(schedule, ahead, expected):
    assert step_s(schedule, ahead) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("ahead", "expected"),
    [
        ("nothing", 20.0 + 4.0 + 10.0),
        ("read", 24.0),  # max(20, 4 + 10) once the batch has been taken, and the copy of the next one behind it
        ("copy", 24.0),
    ],
)
def test_a_step_takes_as_long_as_its_input_where_that_is_slower(ahead, expected):
    assert step_s(wfbp.technique, ahead, "20s", "4s") == pytest.approx(expected)


def test_nothing_to_read_and_copy_changes_nothing():
    where = cluster(2, alpha_s=3.0)
    plain = planned(MODEL, where, [member(wfbp.technique)], LOOKUP)
    assert planned(MODEL, where, [member(wfbp.technique), member(input_pipeline.technique)], LOOKUP) == plain


def test_tasks_are_on_the_streams_that_do_them():
    where = cluster(1)
    stacks = [member(wfbp.technique), member(input_pipeline.technique, read="1s", to_device="1s", ahead="copy")]
    (step,) = planned(MODEL, where, stacks, LOOKUP).steps
    assert [(task.name, task.stream) for task in step.of(Fixed)] == [("read", "host"), ("copy", "copy.h2d")]
    assert step.tasks[0].after_previous == ("copy",)


def test_only_what_takes_time_is_planned_only():
    config = input_pipeline.Config
    assert input_pipeline.planned_only(config()) == ""
    assert "no part of a run" in input_pipeline.planned_only(config(read="1ms"))
