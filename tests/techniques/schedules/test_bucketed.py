"""The bucket rule: DDP's own, counted in bytes of gradient."""

import pytest

from orch.plan import AllReduce
from orch.testing.small import cluster, member, planned, profile
from techniques.schedules import bucketed
from techniques.schedules.bucketed import fill

LOOKUP = {"bucketed": bucketed.technique}


@pytest.mark.parametrize(
    ("sizes", "first", "cap", "ends"),
    [
        ([4, 4, 4], 4, 8, [1, 3]),
        ([4, 4, 4], 5, 8, [2, 3]),
        ([100, 1, 1], 1, 50, [1, 3]),
        ([1, 1, 1], 0, 0, [1, 2, 3]),
        ([1, 1, 1], 9, 9, [3]),
        ([7], 0, 0, [1]),
    ],
)
def test_a_tensor_joins_then_the_bucket_may_close(sizes, first, cap, ends):
    assert fill(sizes, first, cap) == ends


def test_buckets_carry_every_gradient_once_in_ready_order():
    model = profile([(5,), (3,), (2,), (1,)], [1.0] * 4)
    plan = planned(model, cluster(2), [member(bucketed.technique, cap="16B", first_bucket="4B")], LOOKUP)
    carried = [task.op.buffer.tensors for task in plan.steps[0].of(AllReduce)]
    assert carried == [("l4.weight",), ("l3.weight", "l2.weight"), ("l1.weight",)]
