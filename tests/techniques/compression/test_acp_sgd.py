"""ACP-SGD against its brief: the worked example, parity, payloads, and what the error is taken from."""

from dataclasses import replace

import pytest
import torch

from orch.models import catalogue
from orch.plan import AllReduce
from orch.testing.lockstep import Lockstep
from orch.testing.small import cluster, member, planned, profile
from techniques.compression import acp_sgd, error_feedback, no_feedback
from techniques.compression.acp_sgd import OWNER
from techniques.schedules import bucketed, wfbp

LOOKUP = {t.name: t for t in (bucketed.technique, error_feedback.technique)}
M = [torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.0, 2.0], [2.0, 3.0]])]


def run(steps):
    """Run the brief's example: two ranks, rank 1, first Q = (3, 4)."""
    model = profile([(2, 2)], [1.0])
    plan = planned(model, cluster(2), [member(acp_sgd.technique, rank=1, min_compression_rate=0.0)], LOOKUP)
    ranks = Lockstep(plan, model, differentiate=lambda rank, step, name, value: M[rank])
    for rank in ranks.ranks:
        rank.kept[OWNER, "l1.weight:q"] = torch.tensor([[3.0], [4.0]])
    return ranks.run(steps)


def test_worked_example_of_the_brief():
    ranks = run(1)
    assert_applied(ranks, [[0.84, 1.12], [1.32, 1.76]])
    errors = [rank.kept["error-feedback", "l1.weight"] for rank in ranks.ranks]
    torch.testing.assert_close(errors[0], torch.tensor([[1.28, -0.96], [-0.48, 0.36]]), atol=1e-6, rtol=0)
    torch.testing.assert_close(errors[1], torch.tensor([[-0.96, 0.72], [-0.16, 0.12]]), atol=1e-6, rtol=0)
    ranks.run(1)
    assert_applied(ranks, [[0.84 + 0.642353, 1.12 + 1.268235], [1.32 + 1.009412, 1.76 + 1.992941]])
    basis = ranks.ranks[0].kept[OWNER, "l1.weight:p"].flatten()
    torch.testing.assert_close(basis.abs(), torch.tensor([0.536875, 0.843661]), atol=1e-6, rtol=0)


def assert_applied(ranks, expected):
    for rank in ranks.ranks:
        torch.testing.assert_close(rank.applied["l1.weight"], torch.tensor(expected), atol=2e-6, rtol=0)


def test_full_rank_is_the_dense_mean():
    # Square: on a Q step the kept basis has r columns, and must span all n rows.
    model = profile([(3, 3)], [1.0])
    stack = [member(acp_sgd.technique, rank=3, min_compression_rate=0.0)]
    plan = planned(model, cluster(3), stack, LOOKUP)
    dense = Lockstep(planned(model, cluster(3), [], LOOKUP), model).run(4)
    low = Lockstep(plan, model).run(4)
    torch.testing.assert_close(low.ranks[0].parameters, dense.ranks[0].parameters, atol=1e-5, rtol=1e-5)


def test_without_feedback_a_constant_gradient_converges_to_its_best_approximation():
    generator = torch.Generator().manual_seed(0)
    constant = torch.randn(6, 5, generator=generator)
    model = profile([(6, 5)], [1.0])
    stack = [member(acp_sgd.technique, rank=2, min_compression_rate=0.0), member(no_feedback.technique)]
    ranks = Lockstep(planned(model, cluster(2), stack, LOOKUP), model, differentiate=lambda *_: constant)
    ranks.run(60)
    before = ranks.ranks[0].applied["l1.weight"].clone()
    ranks.run(1)
    applied = ranks.ranks[0].applied["l1.weight"] - before
    left, values, right = torch.linalg.svd(constant)
    best = left[:, :2] @ torch.diag(values[:2]) @ right[:2]
    torch.testing.assert_close(applied, best, atol=1e-3, rtol=1e-3)


def test_factors_alternate_and_vectors_travel_along():
    model = profile([((6, 5), (6,)), (3,)], [1.0, 1.0])
    plan = planned(model, cluster(2), [member(acp_sgd.technique, rank=2), member(wfbp.technique)], LOOKUP)
    assert plan.period == 2
    sent = [
        {segment.name: segment.numel for task in step.of(AllReduce) for segment in task.op.buffer.segments}
        for step in plan.steps
    ]
    assert sent[0] == {"l1.0.weight:p": 12, "l1.1.weight": 6, "l2.weight": 3}
    assert sent[1] == {"l1.0.weight:q": 10, "l1.1.weight": 6, "l2.weight": 3}
    model = profile([((64, 64), (64,)), (3,)], [1.0, 1.0])
    plan = planned(model, cluster(2), [member(acp_sgd.technique, rank=2)], LOOKUP)
    assert [len(step.of(AllReduce)) for step in plan.steps] == [1, 1]


@pytest.mark.parametrize(("least", "sent"), [(1.0, "l1.weight:p"), (3.0, "l1.weight")])
def test_a_matrix_that_saves_too_little_is_sent_dense(least, sent):
    # 6 x 6 at rank 4: 36 elements against (6 + 6) * 4 / 2 = 24 a step.
    model = profile([(6, 6)], [1.0])
    plan = planned(model, cluster(2), [member(acp_sgd.technique, rank=4, min_compression_rate=least)], LOOKUP)
    (task,) = plan.steps[0].of(AllReduce)
    assert task.op.buffer.segments[0].name == sent


@pytest.mark.parametrize(
    ("name", "rank", "matrices", "elements"),
    [
        ("resnet50", 4, 54, (110_240, 219_724, 54_120)),
        ("resnet152", 4, 156, (306_848, 678_476, 152_424)),
        ("bert-base", 32, 78, (3_696_648, 2_755_584, 154_946)),
        ("bert-large", 32, 150, (8_136_712, 7_213_056, 356_162)),
    ],
)
def test_table_of_the_brief(name, rank, matrices, elements):
    found = catalogue.model(name)
    model = found.profile(found.knobs())
    # The brief counts parameters, also those that a loss on hidden states never reaches.
    model = replace(model, ready_order=tuple(tensor.name for tensor in reversed(model.tensors)))
    plan = planned(model, cluster(2), [member(acp_sgd.technique, rank=rank)], LOOKUP)
    sent = [{s.name: s.numel for task in step.of(AllReduce) for s in task.op.buffer.segments} for step in plan.steps]
    factors = [sum(numel for key, numel in step.items() if ":" in key) for step in sent]
    assert sum(":" in key for key in sent[0]) == matrices
    assert (*factors, sum(numel for key, numel in sent[0].items() if ":" not in key)) == elements
