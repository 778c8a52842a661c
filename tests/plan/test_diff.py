"""Diffs are what a reader needs to see what a pass did."""

from dataclasses import replace

from orch.plan import AllReduce, Buffer, Compute, Plan, Segment, Step, Task, diff
from orch.plan.plan import NET

A = Task("a", Compute("m", 0.0, 0.0, seconds=1.0))
B = Task("b", Compute("m", 0.0, 0.0, seconds=1.0))
SEND = Task("send", AllReduce(Buffer("send", (Segment("w", 4, "fp32", "w"),))), NET, ("a",))
PLAN = Plan.of("p", 2, [A, B, SEND])


def of(*tasks):
    return Plan.of("p", 2, tasks)


def test_equal_plans_differ_in_nothing():
    assert diff(PLAN, of(A, B, SEND)) == []


def test_added_removed_and_changed_tasks():
    bigger = replace(SEND, after=("a", "b"), op=AllReduce(Buffer("send", (Segment("w", 8, "fp32", "w"),))))
    new = Task("new", Compute("m", 0.0, 0.0), after=("a",))
    assert diff(PLAN, of(A, new, bigger)) == [
        "- b (compute, compute)",
        "+ new (compute, compute) after a",
        "~ send: after a -> a, b",
        "~ send: all_reduce of 16 B -> all_reduce of 32 B",
    ]


def test_order_counts_per_stream():
    assert diff(PLAN, of(B, A, SEND)) == ["~ the order of stream compute"]
    assert diff(PLAN, of(A, SEND, B)) == []


def test_steps_of_a_period_are_named():
    longer = replace(PLAN, steps=(PLAN.steps[0], Step((A, SEND))))
    assert diff(PLAN, longer) == ["step 1 of 2: - b (compute, compute)"]
