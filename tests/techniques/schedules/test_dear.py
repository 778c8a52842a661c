"""DeAR against its brief: step times, what runs under what, padding, and low-rank payloads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.models import catalogue
from orch.plan import AllGatherShards, AllReduce, Forward, ReduceScatter, Update
from orch.stack import payload_bytes
from orch.testing.small import cluster, member, planned, profile, step_time_s
from orch.testing.strategies import profiles
from techniques.schedules import bucketed, dear, mg_wfbp, single_bucket, wfbp

LOOKUP = {"bucketed": bucketed.technique}


def three_layers():
    """The brief's example: three modules, forward 1, backward 2 each, an all-reduce 4 (so a half of it 2)."""
    return profile([(6,), (6,), (6,)], [2.0] * 3, [1.0] * 3), cluster(2, alpha_s=4.0)


@pytest.mark.parametrize(
    ("technique", "knobs", "expected"),
    [
        (dear.technique, {"bucket": "0B"}, 15.0),
        (wfbp.technique, {}, 17.0),
        # In one group only start-ups count here: reduce-scatter 6..8, all-gather 8..10, forward 10..13.
        (dear.technique, {"bucket": "1GiB"}, 13.0),
        (dear.technique, {"bucket": "0B", "prefetch": 1}, 15.0),
    ],
)
def test_worked_example_of_the_brief(technique, knobs, expected):
    model, where = three_layers()
    plan = planned(model, where, [member(technique, **knobs)], LOOKUP)
    assert step_time_s(plan, where) == pytest.approx(expected)


def test_one_big_group_of_the_brief():
    # Its group costs as much as three: reduce-scatter 6..12, all-gather 12..18, forward to 21.
    model = profile([(6,), (6,), (6,)], [2.0] * 3, [1.0] * 3)
    where = cluster(2, beta_s_per_byte=4.0 / 24)
    plan = planned(model, where, [member(dear.technique, bucket="1GiB")], LOOKUP)
    assert step_time_s(plan, where) == pytest.approx(21.0)


def test_prefetch_of_one_waits_until_forward_reaches_the_group_before():
    # All-gathers of 1, forward of 5: without a limit they end at 8; one ahead, the third waits until 14.
    model = profile([(6,), (6,), (6,)], [1.0] * 3, [5.0] * 3)
    where = cluster(2, alpha_s=2.0)
    plan = planned(model, where, [member(dear.technique, bucket="0B", prefetch=1)], LOOKUP)
    gathers = plan.steps[0].of(AllGatherShards)
    assert [gather.after for gather in gathers] == [(), (), ("forward.l1",)]
    free = planned(model, where, [member(dear.technique, bucket="0B")], LOOKUP)
    assert [gather.after for gather in free.steps[0].of(AllGatherShards)] == [(), (), ()]
    assert [task.name for task in free.steps[0]][:3] == [gather.name for gather in gathers]


def test_every_layer_is_updated_before_the_forward_that_reads_it():
    model, where = three_layers()
    plan = planned(model, where, [member(dear.technique, bucket="0B")], LOOKUP)
    order = [task.name for task in plan.steps[0].stream("compute")]
    assert order[:6] == ["update.g0", "forward.l1", "update.g1", "forward.l2", "update.g2", "forward.l3"]
    assert all(task.lag == 1 for task in plan.steps[0].of(Update))
    assert not plan.steps[0].of(AllReduce)


def test_buffers_are_padded_to_the_world_and_never_split_a_layer():
    model = profile([((3, 5), (3,)), (7,), (1,)], [1.0] * 3, [1.0] * 3)
    where = cluster(5, alpha_s=1.0)
    plan = planned(model, where, [member(dear.technique, bucket="72B")], LOOKUP)
    groups = {task.op.buffer.tensors: task.op.nbytes for task in plan.steps[0].of(ReduceScatter)}
    assert groups == {("l1.1.weight", "l1.0.weight"): 80, ("l3.weight", "l2.weight"): 40}
    assert payload_bytes(plan) == (80 + 40) * (1 + 1 / 5)  # a rank hands over its shard when gathering


def test_a_tied_tensor_is_updated_before_its_first_reader():
    from dataclasses import replace

    from orch.models.profile import reverse_ready_order

    model, where = three_layers()
    tied = replace(model.tensors[0], modules=("l1", "l3"))
    tensors = (tied, model.tensors[1])
    model = replace(model, tensors=tensors, ready_order=reverse_ready_order(model.modules, tensors))
    plan = planned(model, where, [member(dear.technique, bucket="0B")], LOOKUP)
    order = [task.name for task in plan.steps[0].stream("compute") if isinstance(task.op, Forward | Update)]
    assert order == ["update.g0", "forward.l1", "update.g1", "forward.l2", "forward.l3"]


def test_one_worker_has_nothing_to_split():
    model, _ = three_layers()
    plan = planned(model, cluster(1), [member(dear.technique)], LOOKUP)
    assert [task.op.kind for task in plan.steps[0]][-1] == "update"
    assert plan.steps[0].of(Update)[0].lag == 0


@given(profiles(), st.integers(2, 5))
def test_it_sends_no_more_bytes_than_the_all_reduces_it_splits(model, world):
    where = cluster(world, alpha_s=1.0)
    plan = planned(model, where, [member(dear.technique, bucket="100B")], LOOKUP)
    halves = [task for kind in (ReduceScatter, AllGatherShards) for task in plan.steps[0].of(kind)]
    wire = sum(task.op.wire_bytes(where.world) for task in halves)
    padded = sum(task.op.nbytes for task in plan.steps[0].of(ReduceScatter))
    assert wire == pytest.approx(2 * (world - 1) / world * padded)
    assert 4 * model.numel <= padded < 4 * (model.numel + world * len(halves))


@pytest.mark.parametrize("prefetch", [None, 1, 2])
def test_it_is_never_slower_than_waiting_for_everything_at_once(prefetch):
    model = profile([(100,)] * 6, [1.0, 3.0, 1.0, 2.0, 1.0, 1.0], [1.0] * 6)
    where = cluster(4, alpha_s=0.5, beta_s_per_byte=0.005)
    split = planned(model, where, [member(dear.technique, bucket="0B", prefetch=prefetch)], LOOKUP)
    whole = planned(model, where, [member(wfbp.technique)], LOOKUP)
    assert step_time_s(split, where) <= step_time_s(whole, where)


# --- the brief's simulations: 64 workers on 10 Gbit Ethernet (a = 1.5 ms, b = 1.7 ns/B), seconds a step -------------------

TABLE = {
    # model: compute of a step; mg-wfbp, one bucket, dear without fusion, dear with its best buffer
    "resnet50": (0.2529, 0.265, 0.428, 0.337, ("8MB", 0.273)),
    "densenet201": (0.2189, 0.252, 0.356, 0.739, ("6MB", 0.231)),
    "inception-v4": (0.379, 0.435, 0.671, 0.739, ("12MB", 0.417)),
}


@pytest.mark.parametrize("name", TABLE)
def test_simulations_of_the_brief(name):
    compute, merged, single, apart, (buffer, fused) = TABLE[name]
    found = catalogue.model(name)
    model = found.profile(found.knobs()).scaled_to(compute / 3, compute * 2 / 3)
    where = cluster(64, alpha_s=1.5e-3, beta_s_per_byte=1.7e-9)
    expected = [
        (member(mg_wfbp.technique, planner="greedy"), merged),
        (member(single_bucket.technique), single),
        (member(dear.technique, bucket="0B"), apart),
        (member(dear.technique, bucket=buffer), fused),
    ]
    for stack, seconds in expected:
        plan = planned(model, where, [stack], LOOKUP)
        assert step_time_s(plan, where) == pytest.approx(seconds, abs=1.1e-3), stack.name
