"""The small examples are what they say."""

import pytest

from orch.plan import Forward
from orch.testing.small import cluster, context, member, planned, profile, step_time_s
from techniques.schedules import bucketed, wfbp


def test_an_all_reduce_costs_alpha_and_beta():
    where = cluster(5, alpha_s=2.0, beta_s_per_byte=0.5)
    assert where.all_reduce_s(8.0, where.world) == 6.0
    assert where.reduce_scatter_s(8.0, where.world) == pytest.approx(3.0)
    assert where.world_size == 5


def test_layers_are_named_and_timed():
    model = profile([((2, 3), (2,)), (4,)], [1.0, 2.0], [0.5, 0.25])
    assert [tensor.name for tensor in model.tensors] == ["l1.0.weight", "l1.1.weight", "l2.weight"]
    assert model.ready_order == ("l2.weight", "l1.1.weight", "l1.0.weight")
    assert [(module.forward_s, module.backward_s) for module in model.modules] == [(0.5, 1.0), (0.25, 2.0)]


def test_a_stack_is_planned_with_its_defaults():
    model = profile([(4,)], [3.0], [1.0])
    where = cluster(2, alpha_s=2.0)
    plan = planned(model, where, [member(wfbp.technique)], {"bucketed": bucketed.technique})
    assert step_time_s(plan, where) == pytest.approx(6.0)
    assert context(model, where).forward_reads == (("forward.l1", ("l1.weight",)),)
    assert plan.steps[0].of(Forward)[0].op.seconds == 1.0
