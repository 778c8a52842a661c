"""The plain plan of a mixture: one chain a crossing, every gradient sent where it is held, nothing beside anything."""

from dataclasses import replace

import pytest

from orch.plan import (
    AllReduce,
    AllToAll,
    Backward,
    Expert,
    ExpertBackward,
    GatherRows,
    Order,
    ScatterRows,
    Update,
    check,
    cut_crossings,
    from_json,
    to_json,
)
from orch.simulate import simulate
from orch.testing import mixture
from orch.workload import Layout, data_parallel, mixture_training, retimed


@pytest.mark.parametrize("capacity", [None, 1.0, 1.25])
@pytest.mark.parametrize(
    ("world", "experts", "slices"), [(1, 1, 1), (4, 4, 1), (4, 2, 1), (4, 1, 1), (8, 2, 2), (4, 1, 4)]
)
def test_every_gradient_is_sent_where_it_is_held(world, experts, slices, capacity):
    model = mixture.layers(2, capacity=capacity)
    plan = check(mixture_training(model, Layout(world, experts, slices), 3), finished=True)
    (step,) = plan.steps
    local = model.spread(experts, slices)
    replicas = world // (experts * slices)
    own = {tensor.name for tensor in model.tensors if ".experts." in tensor.name}
    sent = {send.op.tensors[0]: send for send in step.of(AllReduce)}
    expected = set(model.ready_order) if world > 1 else set()
    assert set(sent) == (expected if replicas > 1 or world == 1 else expected - own)
    for name, send in sent.items():
        assert send.group == ("replicas" if name in own else "world")
        assert send.op.buffer.segments[0].numel == local.tensor(name).numel
    produced = [name for task in step.of(Backward) for name in task.op.ready]
    assert sorted(produced) == sorted(model.ready_order)
    # Experts that no other rank holds are updated without waiting for anything.
    updates = {task.name: task for task in step.of(Update)}
    assert ("update.experts" in updates) == (world > 1 and replicas == 1)
    assert from_json(to_json(plan)) == plan


def test_a_crossing_is_one_chain_forward_and_backward():
    plan = mixture_training(mixture.layers(capacity=1.0), Layout(4, 4), 1)
    (step,) = plan.steps
    chain = ["order", "dispatch", "expert", "combine", "restore"]
    back = ["restore_backward", "combine_backward", "expert_backward", "dispatch_backward", "order_backward"]
    names = [task.name for task in step]
    for parts in (chain, back):
        tasks = [next(task for task in step if task.name == f"{part}.0.moe") for part in parts]
        assert [names.index(task.name) for task in tasks] == sorted(names.index(task.name) for task in tasks)
        assert [task.after for task in tasks[1:]] == [(task.name,) for task in tasks[:-1]]
    assert not [task for task in step.of(AllToAll) if task.op.part == "counts"]  # a capacity is known to all
    assert names.index("forward.0.moe.gate") < names.index("order.0.moe") < names.index("forward.head")
    assert names.index("order_backward.0.moe") < names.index("backward.0.moe.gate")


def test_slices_gather_inside_a_node_what_crossed_between_nodes():
    plan = mixture_training(mixture.layers(tokens=8, capacity=1.0), Layout(8, 4, 2), 1)
    (step,) = plan.steps
    gather, scatter = step.of(GatherRows)[0], step.of(ScatterRows)[0]
    dispatch = next(task for task in step.of(AllToAll) if task.op.part == "dispatch")
    assert (gather.stream, gather.group, gather.after) == ("net.intra", "slices", (dispatch.name,))
    assert (dispatch.stream, dispatch.group) == ("net.inter", "experts")
    # 16 rows of 4 numbers; an expert's slice sees those of both.
    assert (dispatch.op.nbytes, gather.op.nbytes, scatter.op.nbytes) == (256, 256, 512)
    parts = [task.name.split(".")[0] for task in step if ".0.moe" in task.name and "backward" not in task.name]
    assert parts[1:7] == ["order", "dispatch", "gather", "expert", "scatter", "combine"]


def test_work_is_the_same_however_experts_are_spread():
    model = mixture.layers(2, capacity=None)
    alone = mixture_training(model, Layout(1), 2).steps[0]
    spread = mixture_training(model, Layout(4, 4), 2).steps[0]
    assert [task.op.flops for task in alone.of(Expert)] == [task.op.flops for task in spread.of(Expert)]
    # 8 tokens x 2 samples x 2 experts each, two products of 4 x 8, and both gradients of each backward.
    assert alone.of(Expert)[0].op.flops == 2 * 32 * 2 * 4 * 8
    assert alone.of(ExpertBackward)[0].op.flops == 2 * alone.of(Expert)[0].op.flops


def test_a_model_without_mixtures_is_plain_data_parallel():
    model = mixture.layers(0)
    assert mixture_training(model, Layout(4), 2).steps == data_parallel(model, 4, 2).steps


def test_capacity_pads_and_no_capacity_does_not():
    bare = mixture_training(mixture.layers(capacity=None), Layout(4, 4), 1).steps[0]
    padded = mixture_training(mixture.layers(capacity=1.3), Layout(4, 4), 1).steps[0]
    size = [next(t for t in step.of(AllToAll) if t.op.part == "dispatch").op.nbytes for step in (bare, padded)]
    # 16 rows of 4 fp32; with 1.3 each of 4 experts has ceil(1.3 x 4) = 6 slots.
    assert size == [16 * 16, 4 * 6 * 16]
    assert len(bare.of(Order)) == 1


def test_measured_times_are_taken_as_they_are():
    model = mixture.layers().scaled_to(3.0, 6.0)
    where = mixture.cluster(4, launch_s=0.125)
    plan = mixture_training(model, Layout(4, 4), 1, update_s=1.0)
    # Start-ups are in what was measured, so a whole layer pays none on top.
    assert simulate(plan, where.communication_free()).step_time_s == pytest.approx(10.0)


def test_a_cut_plan_is_timed_anew_by_the_whole_layer():
    model = mixture.layers(2)
    where = mixture.cluster(4).communication_free()
    first, later = (
        mixture_training(model.scaled_to(*times), Layout(4, 4), 1, update_s=1.0) for times in ((3.0, 6.0), (6.0, 12.0))
    )
    cut = cut_crossings(first, lambda crossing: 3)
    assert simulate(retimed(cut, later), where).step_time_s == pytest.approx(19.0)
    assert simulate(cut, where).step_time_s == pytest.approx(10.0)


def test_laying_rows_out_by_products_costs_a_product() -> None:
    profile = mixture.layers(tokens=8, hidden=4, top_k=2, experts=4)
    sizes = profile.mixtures[0]
    plans = {}
    for order in ("sort", "einsum"):
        model = replace(profile, mixtures=(replace(sizes, order=order),))
        plans[order] = {task.name: task.op for task in mixture_training(model, Layout(4, 4), 3).steps[0]}
    # 24 tokens of a worker become 48 rows, 4 numbers each.
    for name in ("order", "restore", "restore_backward", "order_backward"):
        by_sort, by_products = (plans[order][f"{name}.{sizes.name}"] for order in ("sort", "einsum"))
        assert (by_sort.flops, by_products.flops) == (0.0, 2 * 48 * 24 * 4)
