"""Power-SGD: two waves, the mean approximation, and an error taken from what was applied."""

import torch

from orch.plan import AllReduce
from orch.testing.lockstep import Lockstep
from orch.testing.small import cluster, member, planned, profile
from techniques.compression import error_feedback, power_sgd
from techniques.compression.power_sgd import Matrix
from techniques.schedules import bucketed, dear

LOOKUP = {t.name: t for t in (bucketed.technique, error_feedback.technique)}


def test_two_waves_of_buckets_each_behind_the_other():
    model = profile([((40, 50), (40,)), (50, 40)], [1.0, 1.0])
    plan = planned(model, cluster(2), [member(power_sgd.technique, rank=2)], LOOKUP)
    first, second = plan.steps[0].of(AllReduce)
    assert [s.name for s in first.op.buffer.segments] == ["l2.weight:p", "l1.1.weight", "l1.0.weight:p"]
    assert [s.name for s in second.op.buffer.segments] == ["l2.weight:q", "l1.0.weight:q"]
    order = [task.name for task in plan.steps[0].stream("compute")]
    assert order.index("encode_q.l2.weight") > order.index("backward.l1")


def test_full_rank_is_the_dense_mean():
    model = profile([(4, 3)], [1.0])
    plan = planned(model, cluster(3), [member(power_sgd.technique, rank=3, min_compression_rate=0.0)], LOOKUP)
    dense = Lockstep(planned(model, cluster(3), [], LOOKUP), model).run(4)
    low = Lockstep(plan, model).run(4)
    torch.testing.assert_close(low.ranks[0].parameters, dense.ranks[0].parameters, atol=1e-5, rtol=1e-5)


def test_the_error_is_what_the_aggregate_left_out():
    generator = torch.Generator().manual_seed(1)
    matrices = [torch.randn(7, 5, generator=generator) for _ in range(3)]
    model = profile([(7, 5)], [1.0])
    plan = planned(model, cluster(3), [member(power_sgd.technique, rank=1)], LOOKUP)
    ranks = Lockstep(plan, model, differentiate=lambda rank, *_: matrices[rank]).run(1)
    for rank, matrix in zip(ranks.ranks, matrices, strict=True):
        error = rank.kept["error-feedback", "l1.weight"]
        torch.testing.assert_close(error, matrix - rank.applied["l1.weight"])
        assert torch.linalg.matrix_rank(rank.applied["l1.weight"]) == 1


def test_the_error_of_a_constant_gradient_shrinks_with_warm_starts():
    constant = torch.randn(9, 8, generator=torch.Generator().manual_seed(2))
    model = profile([(9, 8)], [1.0])
    plan = planned(model, cluster(2), [member(power_sgd.technique, rank=2)], LOOKUP)
    ranks = Lockstep(plan, model, differentiate=lambda *_: constant)
    gaps = []
    for _ in range(12):
        before = ranks.ranks[0].applied["l1.weight"].clone()
        ranks.run(1)
        gaps.append(float((ranks.ranks[0].applied["l1.weight"] - before).norm()))
    mean = ranks.ranks[0].applied["l1.weight"] / 12
    assert (mean - constant).norm() < 0.5 * constant.norm()
    assert gaps[-1] > gaps[0]


def test_dear_splits_the_last_wave_only():
    model = profile([((40, 50), (40,)), (50, 40)], [1.0, 1.0], [1.0, 1.0])
    plan = planned(model, cluster(4), [member(power_sgd.technique, rank=2), member(dear.technique)], LOOKUP)
    (first,) = plan.steps[0].of(AllReduce)
    assert [s.name for s in first.op.buffer.segments] == ["l2.weight:p", "l1.0.weight:p"]
    assert [task.name for task in plan.steps[0]][:2] == ["all_gather.b0", "all_gather_q.b2"]


def test_a_matrix_is_the_first_dim_by_all_others():
    assert Matrix.of((8, 3, 2, 2), 4) == Matrix(8, 12, 4)
    assert Matrix.of((2, 1024), 32) == Matrix(2, 1024, 2)
    assert Matrix.of((5,), 4) is None
    assert Matrix.of((0, 4), 4) is None
