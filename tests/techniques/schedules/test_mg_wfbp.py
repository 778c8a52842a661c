"""MG-WFBP against its brief, against brute force, and never worse than the schedules it generalises."""

import pytest

from orch.plan import AllReduce
from orch.stack import payload_bytes
from orch.testing.small import cluster, member, planned, profile, step_time_s
from techniques.schedules import bucketed, mg_wfbp, single_bucket, wfbp

LOOKUP = {"bucketed": bucketed.technique}


def buckets(plan):
    return [
        tuple(segment.tensor.split(".")[0] for segment in task.op.buffer.segments)
        for task in plan.steps[0].of(AllReduce)
    ]


def example(technique, **knobs):
    """The brief's example: backward [2, 1, 1, 2] in forward order, payloads [4, 1, 1, 1], start-up 2, one a byte."""
    model = profile([(4,), (1,), (1,), (1,)], [2, 1, 1, 2])
    where = cluster(2, alpha_s=2.0, beta_s_per_byte=0.25)
    return planned(model, where, [member(technique, **knobs)], LOOKUP), where


@pytest.mark.parametrize(
    ("technique", "knobs", "ends"),
    [
        (wfbp.technique, {}, 17.0),
        (single_bucket.technique, {}, 15.0),
        (mg_wfbp.technique, {"planner": "greedy"}, 15.0),
        (mg_wfbp.technique, {"planner": "exact"}, 14.0),
    ],
)
def test_worked_example_of_the_brief(technique, knobs, ends):
    plan, where = example(technique, **knobs)
    assert step_time_s(plan, where) == pytest.approx(ends)
    assert payload_bytes(plan) == 28


def test_greedy_merges_as_the_brief_says():
    plan, _ = example(mg_wfbp.technique, planner="greedy")
    assert buckets(plan) == [("l4", "l3", "l2"), ("l1",)]
