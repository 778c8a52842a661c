"""Every rule of the specification, each broken once."""

import pickle
from dataclasses import replace

import pytest

from orch.plan import (
    Aggregate,
    AllReduce,
    Backward,
    Buffer,
    Compute,
    Group,
    Plan,
    PlanError,
    Segment,
    Step,
    Task,
    Update,
    check,
)
from orch.plan.plan import NET

W = Segment("w", 4, "fp32", "w")
BACK = Task("backward", Backward("m", 0.0, 0.0, seconds=1.0, ready=("w",)))
SEND = Task("send", AllReduce(Buffer("send", (W,))), NET, ("backward",))
UPDATE = Task("update", Update(("w",), 4, seconds=0.0), after=("send",))
GOOD = Plan.of("good", 2, [BACK, SEND, UPDATE])


def of(*tasks):
    return Plan.of("bad", 2, tasks)


def carrying(*segments, op=AllReduce):
    return replace(SEND, op=op(Buffer("send", segments)))


def test_a_good_plan_is_returned():
    assert check(GOOD, finished=True) is GOOD


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (replace(GOOD, steps=()), "has no steps"),
        (of(BACK, BACK, SEND, UPDATE), "'backward' appears twice"),
        (of(BACK, UPDATE, SEND), "'update' waits for 'send', which does not stand before it"),
        (of(BACK, SEND, replace(UPDATE, after=("nobody",))), "waits for 'nobody'"),
        (of(BACK, replace(SEND, after_previous=("nobody",)), UPDATE), "'nobody' of the previous step"),
        (of(replace(BACK, role="few"), SEND, UPDATE), "has role 'few'; the plan knows all"),
        (of(BACK, replace(SEND, group="halves"), UPDATE), "has group 'halves'; the plan knows world"),
        (of(BACK, replace(SEND, lag=2), UPDATE), "has lag 2"),
        (of(BACK, carrying(), UPDATE), "carries nothing"),
        (of(BACK, carrying(W, W), UPDATE), "carries a segment twice"),
        (of(BACK, carrying(replace(W, dtype="fp31")), UPDATE), "unknown dtype 'fp31'"),
        (of(BACK, carrying(W, Segment("v", 1, "bf16", "w")), UPDATE), "reduces segments of different dtypes"),
        (of(BACK, SEND), "gradient 'w' is not updated exactly once"),
        (of(BACK, SEND, UPDATE, replace(UPDATE, name="again")), "gradient 'w' is not updated exactly once"),
        (of(BACK, SEND, UPDATE, replace(UPDATE, name="v", op=Update(("v",), 1))), "gradient 'v' is not updated"),
        (of(BACK, replace(BACK, name="b2"), SEND, UPDATE), "produced twice"),
    ],
)
def test_a_broken_rule_is_named(plan, message):
    with pytest.raises(PlanError, match=message):
        check(plan)


def test_one_name_stands_for_one_layout():
    other = replace(SEND, op=AllReduce(Buffer("send", (replace(W, numel=5),))))
    with pytest.raises(PlanError, match="buffer 'send' has two layouts"):
        check(replace(GOOD, steps=(GOOD.steps[0], Step((BACK, other, UPDATE)))))


def test_a_finished_plan_aggregates_every_payload():
    task = replace(SEND, op=Aggregate(Buffer("send", (W,)), Compute("m", 0.0, 0.0)))
    assert check(of(BACK, task, UPDATE))
    with pytest.raises(PlanError, match="no exchange aggregates this payload"):
        check(of(BACK, task, UPDATE), finished=True)


def test_an_update_may_lag_into_the_next_step():
    late = replace(UPDATE, after=(), after_previous=("send",), lag=1)
    assert check(of(late, BACK, SEND))


def test_groups_and_roles_of_a_plan_are_known():
    halves = Group("halves", (range(1), range(1, 2)))
    plan = replace(of(BACK, replace(SEND, group="halves"), UPDATE), groups={**GOOD.groups, "halves": halves})
    assert check(plan).groups["halves"].block_of(1) == range(1, 2)


def test_a_broken_rule_can_be_told_by_a_worker() -> None:
    error = PlanError("task 'x' appears twice in one step")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (PlanError, str(error))
