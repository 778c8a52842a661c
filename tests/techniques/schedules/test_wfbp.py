"""WFBP: one bucket a tensor, sent as soon as it exists."""

from orch.plan import AllReduce
from orch.testing.small import cluster, member, planned, profile
from techniques.schedules import bucketed, wfbp


def test_each_gradient_is_sent_when_it_is_ready():
    model = profile([(5,), (3, 3), (1,)], [1.0] * 3)
    plan = planned(model, cluster(3), [member(wfbp.technique)], {"bucketed": bucketed.technique})
    sends = plan.steps[0].of(AllReduce)
    assert [send.op.buffer.tensors for send in sends] == [(name,) for name in model.ready_order]
    assert [send.after for send in sends] == [("backward.l3",), ("backward.l2",), ("backward.l1",)]
