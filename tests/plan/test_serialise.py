"""JSON: every shipped stack survives it, and a file makes nothing but values of a plan."""

import json

import pytest
from hypothesis import given, settings

from orch import registry
from orch.errors import OrchError
from orch.plan import NET, AllReduce, Buffer, Plan, Segment, Task, from_json, to_json
from orch.testing.small import cluster, member, planned, profile
from orch.testing.strategies import plans


@settings(max_examples=30, deadline=None)
@given(plans())
def test_any_plan_is_read_back_equal(plan):
    assert from_json(json.loads(json.dumps(to_json(plan)))) == plan


def small_plan(*names):
    model = profile([((4, 3), (4,)), (5,)], [1.0, 1.0], [1.0, 1.0])
    lookup = registry.technique
    stack = [member(lookup(name)) for name in names]
    return planned(model, cluster(2), stack, {name: lookup(name) for name in registry.techniques()})


@pytest.mark.parametrize("names", [("dear", "acp-sgd"), ("top-k", "mg-wfbp"), ("power-sgd",), ("torch-ddp",)])
def test_stacks_are_read_back_equal(names):
    plan = small_plan(*names)
    assert from_json(json.loads(json.dumps(to_json(plan)))) == plan


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("no.such.module:Op", "not installed"),
        ("orch.plan.operations:NoSuchOp", "not installed"),
        ("subprocess:Popen", "not an operation"),
        ("builtins:eval", "not an operation"),
        ("orch.plan.plan:Task", "not an operation"),
    ],
)
def test_a_file_makes_nothing_but_values_of_a_plan(kind, message):
    data = to_json(small_plan("wfbp"))
    data["steps"][0][0]["op"] = {"is": kind}
    with pytest.raises(OrchError, match=message) as caught:
        from_json(data)
    assert caught.value.code == "E501"


def test_the_begin_of_a_part_is_written_where_there_is_one() -> None:
    whole, part = Segment("w", 4, "fp32", "w"), Segment("w@2", 2, "fp32", "w", 2)
    assert part.is_gradient
    plan = Plan.of("p", 2, [Task(s.name, AllReduce(Buffer(s.name, (s,))), NET) for s in (whole, part)])
    data = to_json(plan)
    segments = [task["op"]["buffer"]["segments"][0] for task in data["steps"][0]]
    assert ["begin" in segment for segment in segments] == [False, True]
    assert from_json(data) == plan
