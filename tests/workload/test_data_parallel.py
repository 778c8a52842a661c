"""The plain plan: what the data demands and nothing else."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from orch.models.profile import Module, Profile, Tensor, reverse_ready_order
from orch.plan import AllReduce, Backward, Forward, Update, check
from orch.testing.small import cluster, profile
from orch.testing.strategies import profiles
from orch.workload import data_parallel, forward_reads, retimed, without_peers


@settings(max_examples=40, deadline=None)
@given(profiles())
def test_every_gradient_is_sent_once_as_soon_as_it_exists(model):
    plan = check(data_parallel(model, 3, 2), finished=True)
    (step,) = plan.steps
    sends = step.of(AllReduce)
    assert tuple(send.op.buffer.tensors[0] for send in sends) == model.ready_order
    producers = {tensor: task.name for task in step.of(Backward) for tensor in task.op.ready}
    assert all(send.after == (producers[send.op.buffer.tensors[0]],) for send in sends)
    assert step.of(Update)[0].after == tuple(send.name for send in sends)
    assert [task.op.module for task in step.of(Forward)] == [module.name for module in model.modules]


def test_one_worker_sends_nothing():
    plan = data_parallel(profile([(2, 3)], [1.0]), 1, 1)
    assert not plan.steps[0].of(AllReduce)
    assert plan.steps[0].of(Update)[0].after == ()


def test_work_scales_with_the_batch_and_dtypes_go_where_they_belong():
    modules = (Module("a", 10.0, 3.0), Module("b", 20.0, 5.0))
    tensors = (Tensor("a.w", (4,), ("a",)), Tensor("b.w", (2,), ("b",)))
    model = Profile("m", modules, tensors, ("b.w", "a.w"), "made up")
    plan = data_parallel(model, 2, 8, precision="bf16", gradient_dtype="fp16", update_s=0.5)
    forward, backward = plan.steps[0].of(Forward)[1].op, plan.steps[0].of(Backward)[0].op
    assert (forward.flops, forward.moved_bytes, forward.dtype) == (160.0, 4.0 * 5 * 8, "bf16")
    assert (backward.flops, backward.moved_bytes) == (320.0, 8.0 * 5 * 8)
    assert plan.steps[0].of(AllReduce)[0].op.nbytes == 2 * 2
    assert plan.steps[0].of(Update)[0].op.cost_s(cluster(2), cluster(2).world) == 0.5


def test_a_tied_tensor_is_ready_when_its_first_module_is_done():
    modules = (Module("embed", 1.0, 1.0), Module("block", 1.0, 1.0), Module("head", 1.0, 1.0))
    tensors = (Tensor("tied", (4,), ("embed", "head")), Tensor("block.w", (2,), ("block",)))
    model = Profile("m", modules, tensors, reverse_ready_order(modules, tensors), "made up")
    backward = data_parallel(model, 2, 1).steps[0].of(Backward)
    assert [(task.name, task.op.ready) for task in backward] == [
        ("backward.block", ("block.w",)),
        ("backward.embed", ("tied",)),
    ]
    assert backward[0].op.flops == pytest.approx(4.0)
    reads = forward_reads(model)
    assert reads == (("forward.embed", ("tied",)), ("forward.block", ("block.w",)), ("forward.head", ("tied",)))


def test_a_tensor_without_gradient_is_neither_sent_nor_updated():
    model = profile([(2,), (3,)], [1.0, 1.0])
    model = replace(model, ready_order=("l2.weight",))
    plan = check(data_parallel(model, 2, 1))
    assert plan.steps[0].of(Update)[0].op.parameters == ("l2.weight",)
    assert plan.steps[0].of(Update)[0].op.numel == 3
    assert len(plan.steps[0].of(AllReduce)) == 1


def test_a_plan_takes_the_seconds_of_another_observation_and_stays_what_it_was():
    old, new = (profile([(2,), (3,)], [1.0 * k, 2.0 * k], [0.5 * k, 0.25 * k]) for k in (1, 3))
    plan = data_parallel(old, 2, 1, update_s=1.0)
    assert retimed(plan, data_parallel(new, 2, 1, update_s=5.0)) == data_parallel(new, 2, 1, update_s=5.0)
    assert retimed(plan, plan) == plan


def test_without_peers_every_task_is_still_there():
    plan = data_parallel(profile([(2,), (3,)], [1.0, 1.0]), 4, 1)
    alone = check(without_peers(plan), finished=True)
    assert alone.world_size == 1
    assert alone.steps == plan.steps
