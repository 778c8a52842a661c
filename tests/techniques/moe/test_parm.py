"""Parm: one exchange in place of two collectives, the volumes of the brief, and a choice by costs."""

from __future__ import annotations

import pytest

from orch import registry
from orch.errors import OrchError
from orch.plan import COUNTS, AllToAll, GatherRows, ScatterRows, check
from orch.simulate import simulate
from orch.stack import arrange
from orch.testing import mixture, small
from orch.testing.contract import TechniqueContract
from orch.workload import Layout, mixture_training
from techniques.moe import parm


def setting(intra: tuple[float, float], capacity: float | None = 1.0, slices: int = 2):
    model = mixture.layers(2, tokens=16, hidden=8, inner=16, experts=4, capacity=capacity)
    layout = Layout(8, 8 // slices if slices > 1 else 4, slices)
    where = mixture.cluster(
        8, alpha_s=0.2, beta_s_per_byte=1e-3, rate_flops=2e4, nodes=4, intra=intra, group=layout.experts
    )
    return where, mixture_training(model, layout, 2), small.context(model.spread(layout.experts, slices), where)


@pytest.mark.parametrize("capacity", [None, 1.0])
def test_rows_go_to_all_slices_at_once_and_nothing_is_gathered(capacity: float | None) -> None:
    where, plain, context = setting((0.1, 5e-4), capacity)
    plan = check(parm.rewrite(plain, context, parm.Config(schedule="s1")), finished=True)
    step = plan.steps[0]
    assert not step.of(GatherRows)
    assert not step.of(ScatterRows)
    before = {(t.op.module, t.op.part): t.op.nbytes for t in plain.steps[0].of(AllToAll)}
    for task in step.of(AllToAll):
        assert task.group == "block"
        assert task.op.copies == 2
        assert task.op.nbytes == 2 * before[task.op.module, task.op.part]
    names = [task.name for task in step if task.name.endswith("0.moe") and not task.name.startswith("all_reduce")]
    counts = [f"{COUNTS}.0.moe"] if capacity is None else []
    assert names[:6] == ["order.0.moe", *counts, "dispatch.0.moe", "expert.0.moe", "combine.0.moe", "restore.0.moe", *(
        [] if counts else ["restore_backward.0.moe"])]  # fmt: skip
    assert simulate(plan, where).step_time_s > 0


def test_the_volumes_of_the_brief() -> None:
    # P 8, N_MP = N_ESP = 2, N_EP = E = 4, B 4, L 1024, M 1024, k 1, f 1.2: an exchange of 5.03e6 elements a GPU. Behind the
    # paper's split each of the two ranks that share a sample has half of its tokens.
    model = mixture.layers(tokens=1024, hidden=1024, inner=64, experts=4, top_k=1, capacity=1.2)
    where = mixture.cluster(8, nodes=4, group=4)
    plain = mixture_training(model, Layout(8, 4, 2), 2)
    plan = parm.rewrite(plain, small.context(model.spread(4, 2), where), parm.Config(schedule="s1"))
    (dispatch,) = [task.op for task in plan.steps[0].of(AllToAll) if task.op.part == "dispatch"]
    assert dispatch.nbytes / 4 == pytest.approx(5.03e6, rel=2e-3)


def test_the_faster_schedule_of_each_layer_is_chosen() -> None:
    for intra, fused in (((5.0, 1e-2), True), ((0.0, 0.0), False)):
        where, plain, context = setting(intra)
        chosen = parm.rewrite(plain, context, parm.Config())
        assert (not chosen.steps[0].of(GatherRows)) is fused
        others = [
            simulate(parm.rewrite(plain, context, parm.Config(schedule=schedule)), where).step_time_s
            for schedule in ("s1", "baseline")
        ]
        assert simulate(chosen, where).step_time_s <= min(others) * (1 + 1e-9)


def test_whole_experts_are_left_alone_and_other_ways_excluded() -> None:
    _, plain, context = setting((0.1, 5e-4), slices=1)
    assert parm.rewrite(plain, context, parm.Config(schedule="s1")) is plain
    for other in ("pipe-a2a", "two-level-a2a", "int8-rows"):
        with pytest.raises(OrchError, match="exclude one another"):
            arrange([small.member(parm.technique), small.member(registry.technique(other))], registry.technique)


class TestParm(TechniqueContract):
    technique = parm.technique
    worlds = (1, 2)
