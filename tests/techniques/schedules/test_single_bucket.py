"""One bucket, however many tensors."""

from orch.plan import AllReduce
from orch.testing.small import cluster, member, planned, profile
from techniques.schedules import bucketed, single_bucket


def test_all_gradients_travel_together():
    model = profile([(5,), (3, 3), (1,)], [1.0] * 3)
    plan = planned(model, cluster(3), [member(single_bucket.technique)], {"bucketed": bucketed.technique})
    (send,) = plan.steps[0].of(AllReduce)
    assert send.op.nbytes == 4 * (5 + 9 + 1)
    assert send.op.buffer.tensors == model.ready_order
    assert send.after == ("backward.l1",)
