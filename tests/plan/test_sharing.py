"""What a meeting costs: its collective, and nothing for coming and going."""

from orch.cluster import Span
from orch.plan import Join, Meet, Rows, SumRows, from_json, meeting, to_json
from orch.plan.plan import Plan
from orch.testing import mixture


def test_a_meeting_is_coming_a_collective_and_going_on() -> None:
    op = SumRows(Rows.buffer_of("sum.x", 10, "fp32"), "x", "sum", 5, 0, 5, width=2)
    come, together, go = meeting(op, "net.intra", "tensor", ("before",))
    assert (come.after, together.after, go.after) == (("before",), ("meet.x",), ("sum.x",))
    where, span = mixture.cluster(4, all_reduce=(1.0, 0.25)), Span(4, 1, 4)
    assert [task.op.cost_s(where, span) for task in (come, together, go)] == [0.0, 11.0, 0.0]
    assert together.op.wire_bytes(span) == 2 * 3 / 4 * 40
    back = meeting(SumRows(op.buffer, "x", "sum_backward"), "net.intra", "tensor", ())
    assert [task.name for task in (back[0], back[2])] == ["meet_backward.x", "join_backward.x"]
    assert all(task.op.backward for task in (back[0], back[2]))


def test_a_plan_with_meetings_goes_through_json() -> None:
    op = SumRows(Rows.buffer_of("sum.x", 10, "fp32"), "x", "sum", 5, 0, 5, width=2)
    plan = Plan.of("met", 2, meeting(op, "net.inter", "world", ()))
    assert from_json(to_json(plan)) == plan
    assert isinstance(plan.steps[0].tasks[2].op, Join)
    assert type(plan.steps[0].tasks[0].op) is Meet
