"""The all-gather exchange: payloads fuse like gradients, decoding waits behind backward."""

import pytest

from orch.errors import OrchError
from orch.plan import AllGather
from orch.stack import arrange
from orch.testing.small import cluster, member, planned, profile
from techniques.compression import all_gather, error_feedback, top_k
from techniques.schedules import bucketed

LOOKUP = {t.name: t for t in (all_gather.technique, bucketed.technique, error_feedback.technique)}


def test_payloads_share_buckets_by_the_gradient_they_serve():
    model = profile([(1000,), (1000,), (1000,)], [1.0] * 3)
    stack = [member(top_k.technique, density=0.01), member(bucketed.technique, cap="8000B", first_bucket="4000B")]
    plan = planned(model, cluster(2), stack, LOOKUP)
    gathers = plan.steps[0].of(AllGather)
    assert [task.op.nbytes for task in gathers] == [80, 160]
    order = [task.name for task in plan.steps[0].stream("compute")]
    assert order[-4:] == ["decode.l3.weight", "decode.l2.weight", "decode.l1.weight", "update"]
    assert order.index("backward.l1") < order.index("decode.l3.weight")


def test_it_has_nothing_to_do_with_dense_gradients():
    with pytest.raises(OrchError, match="'all-gather' needs quantised or sparse gradients and nothing"):
        arrange([member(all_gather.technique)], LOOKUP.__getitem__)
