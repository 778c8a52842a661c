"""Tutel: one degree for both directions, the best of four in all."""

import pytest

from orch.plan import Expert, ExpertBackward, check
from orch.simulate import simulate
from orch.testing import mixture, small
from orch.workload import Layout, mixture_training
from techniques.moe import pipemoe, tutel


@pytest.mark.parametrize(("launch", "rate"), [(0.0, 1e3), (0.5, 1e4), (5.0, 1e4), (0.05, 1e5)])
def test_the_best_of_its_degrees_is_taken_and_pipemoe_is_never_worse(launch: float, rate: float) -> None:
    model = mixture.layers(2, tokens=32, capacity=1.0)
    where = mixture.cluster(4, alpha_s=0.1, beta_s_per_byte=1e-3, rate_flops=rate, launch_s=launch)
    context = small.context(model, where)
    plain = mixture_training(model, Layout(4, 4), 2)
    plan = check(tutel.rewrite(plain, context, tutel.Config()), finished=True)
    (step,) = plan.steps
    assert len(step.of(Expert)) == len(step.of(ExpertBackward))
    chosen = simulate(plan, where).step_time_s
    for degree in tutel.DEGREES:
        other = tutel.rewrite(plain, context, tutel.Config(degree=degree))
        assert chosen <= simulate(other, where).step_time_s * (1 + 1e-9)
    assert simulate(pipemoe.rewrite(plain, context, pipemoe.Config()), where).step_time_s <= chosen * (1 + 1e-9)


def test_one_rank_with_all_experts_is_left_whole() -> None:
    plain = mixture_training(mixture.layers(), Layout(1), 1)
    where = mixture.cluster(1)
    assert tutel.rewrite(plain, small.context(mixture.layers(), where), tutel.Config()) is plain


def test_on_one_network_chunks_are_gathered_as_they_come_and_the_other_is_idle() -> None:
    model = mixture.layers(tokens=32, capacity=1.0)
    where = mixture.cluster(8, alpha_s=0.1, beta_s_per_byte=1e-3, rate_flops=1e4, nodes=4, intra=(0.1, 5e-4), group=4)
    context = small.context(model.spread(4, 2), where)
    plain = mixture_training(model, Layout(8, 4, 2), 2)
    both, one = (
        check(tutel.rewrite(plain, context, tutel.Config(degree=2, networks=networks)), finished=True)
        for networks in ("both", "one")
    )
    assert both.steps[0].stream("net.intra")
    assert not one.steps[0].stream("net.intra")
    names = [task.name for task in one.steps[0].stream("net.inter") if task.name.endswith((".c0", ".c1"))]
    assert names[:8] == [f"{part}.0.moe.c{n}" for pair in (("dispatch", "gather"), ("scatter", "combine"))
                         for n in (0, 1) for part in pair]  # fmt: skip
    assert names[8:12] == [f"{part}_backward.0.moe.c{n}" for n in (0, 1) for part in ("combine", "gather")]
    assert simulate(both, where).step_time_s < simulate(one, where).step_time_s
