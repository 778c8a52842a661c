"""FasterMoE's turns: the times of its pipeline, and never a choice that is slower than another."""

import pytest

from orch.plan import AllToAll, Expert, check
from orch.simulate import simulate
from orch.testing import mixture, small
from orch.workload import Layout, mixture_training
from techniques.moe import fastermoe
from techniques.moe.fastermoe import Config


def setting(ranks: int, *, alpha: float = 0.0, rate: float = 1e3, slices: int = 1, nodes: int = 1):
    model = mixture.layers(1, tokens=16, hidden=8, experts=8, capacity=1.0)
    where = mixture.cluster(
        ranks * slices, alpha_s=alpha, beta_s_per_byte=1e-3, rate_flops=rate, nodes=nodes, group=ranks
    )
    layout = Layout(ranks * slices, ranks, slices)
    return mixture_training(model, layout, 2), where, small.context(model.spread(ranks, slices), where)


@pytest.mark.parametrize("rate", [1e3, 1e4, 1e5])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_own_rows_are_computed_while_the_first_ones_travel(rate: float, group: int) -> None:
    plain, where, context = setting(8, rate=rate)
    plan = check(fastermoe.rewrite(plain, context, Config(group=group)), finished=True)
    turns = 8 // group
    tasks = {task.name: task.op for task in plan.steps[0]}
    spans = {span.task.name: span for span in simulate(plan, where).spans(0)}
    move = [
        0.0 if name not in tasks else tasks[name].cost_s(where, where.world)
        for name in (f"dispatch.0.moe.t{turn}" for turn in range(turns))
    ]
    expert_s = tasks["expert.0.moe.t0"].cost_s(where, where.world)
    arrived = computed = 0.0
    for seconds in move:
        arrived += seconds
        computed = max(computed, arrived) + expert_s
    begin = spans["order.0.moe"].end_s
    assert spans[f"expert.0.moe.t{turns - 1}"].end_s - begin == pytest.approx(computed)
    # Without start-ups the turns together take what the whole exchange takes.
    whole = plain.steps[0].of(AllToAll)[0].op.cost_s(where, where.world)
    assert sum(move) == pytest.approx(whole)


@pytest.mark.parametrize(("alpha", "rate"), [(0.0, 1e3), (0.1, 1e4), (5.0, 1e4), (0.05, 1e5)])
def test_no_other_groups_are_faster(alpha: float, rate: float) -> None:
    plain, where, context = setting(8, alpha=alpha, rate=rate)
    chosen = simulate(fastermoe.rewrite(plain, context, Config()), where).step_time_s
    for group in (1, 2, 4, 8):
        other = fastermoe.rewrite(plain, context, Config(group=group))
        assert chosen <= simulate(other, where).step_time_s * (1 + 1e-9)


def test_start_ups_that_are_worth_no_turn_leave_a_layer_whole() -> None:
    plain, _, context = setting(4, alpha=1e6)
    assert fastermoe.rewrite(plain, context, Config()) is plain
    assert fastermoe.rewrite(plain, context, Config(group=64)) is plain


def test_groups_are_no_larger_than_asked_for_and_divide_the_ranks() -> None:
    assert fastermoe.groups(12) == [1, 2, 3, 4, 6]
    assert fastermoe.groups(12, 5) == [1, 2, 3, 4]
    plain, _, context = setting(8)
    plan = fastermoe.rewrite(plain, context, Config(group=3))
    assert {task.op.turns for task in plan.steps[0].of(Expert)} == {4}


def test_experts_cut_into_slices_are_left_as_they_were() -> None:
    plain, _, context = setting(4, slices=2, nodes=4)
    assert fastermoe.rewrite(plain, context, Config(group=1)) is plain
