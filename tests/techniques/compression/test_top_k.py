"""Top-k: how many, which, and what is left."""

import pytest
import torch

from orch.plan import AllGather, AllReduce
from orch.stack import payload_bytes
from orch.testing.lockstep import Lockstep
from orch.testing.small import cluster, member, planned, profile
from techniques.compression import all_gather, error_feedback, no_feedback, top_k
from techniques.compression.top_k_kernels import mean, select
from techniques.schedules import bucketed, wfbp

LOOKUP = {t.name: t for t in (all_gather.technique, bucketed.technique, error_feedback.technique)}


@pytest.mark.parametrize(
    ("values", "k", "indices"),
    [
        ([1.0, -3.0, 2.0], 1, [1]),
        ([2.0, -2.0, 2.0, 1.0], 2, [0, 1]),
        ([0.0, 0.0, 0.0], 2, [0, 1]),
        ([1.0, float("nan"), 5.0], 1, [1]),
        ([7.0], 1, [0]),
    ],
)
def test_the_largest_are_kept_and_ties_go_to_smaller_indices(values, k, indices):
    gradient = torch.tensor(values)
    where, what = select(gradient, k)
    assert where.dtype == torch.int32
    assert where.tolist() == indices
    torch.testing.assert_close(what, gradient[indices], equal_nan=True)


@pytest.mark.parametrize(("density", "numel", "k"), [(0.001, 10, 1), (0.3, 10, 3), (0.25, 7, 1), (1.0, 5, 5)])
def test_k_is_at_least_one(density, numel, k):
    model = profile([(numel,)], [1.0])
    plan = planned(model, cluster(2), [member(top_k.technique, density=density)], LOOKUP)
    (task,) = plan.steps[0].of(AllGather)
    assert {segment.dtype: segment.numel for segment in task.op.buffer.segments} == {"int32": k, "fp32": k}
    assert payload_bytes(plan) == 8 * k


def test_the_sum_runs_in_rank_order_over_all_that_was_sent():
    indices = [torch.tensor([0, 2], dtype=torch.int32), torch.tensor([2, 3], dtype=torch.int32)]
    values = [torch.tensor([1.0, 2.0]), torch.tensor([4.0, 8.0])]
    assert mean(indices, values, 5).tolist() == [0.5, 0.0, 3.0, 4.0, 0.0]


def test_full_density_is_the_dense_mean():
    model = profile([(5, 2), (3,)], [1.0, 1.0])
    dense = Lockstep(planned(model, cluster(3), [], LOOKUP), model).run(3)
    sparse = Lockstep(planned(model, cluster(3), [member(top_k.technique, density=1.0)], LOOKUP), model).run(3)
    torch.testing.assert_close(sparse.ranks[0].parameters, dense.ranks[0].parameters)


def test_what_is_not_sent_is_kept_or_lost():
    gradient = torch.tensor([3.0, -1.0, 0.5])
    model = profile([(3,)], [1.0])
    kept, lost = (
        Lockstep(
            planned(model, cluster(2), [member(top_k.technique, density=0.4), *extra], LOOKUP),
            model,
            differentiate=lambda *_: gradient,
        ).run(4)
        for extra in ([], [member(no_feedback.technique)])
    )
    # 3 is sent, then sent again until the residual of the second entry has grown beyond it.
    assert kept.ranks[0].applied["l1.weight"].tolist() == [9.0, -4.0, 0.0]
    assert kept.ranks[0].kept["error-feedback", "l1.weight"].tolist() == [3.0, 0.0, 2.0]
    assert lost.ranks[0].applied["l1.weight"].tolist() == [12.0, 0.0, 0.0]


def test_small_tensors_may_stay_dense():
    model = profile([(100,), (3,)], [1.0, 1.0])
    stack = [member(top_k.technique, density=0.1, min_numel=10), member(wfbp.technique)]
    plan = planned(model, cluster(2), stack, LOOKUP)
    assert [task.op.buffer.tensors for task in plan.steps[0].of(AllReduce)] == [("l2.weight",)]
    assert [task.op.buffer.tensors for task in plan.steps[0].of(AllGather)] == [("l1.weight",)]
