"""FasterMoE's turns: the times of its pipeline, and never a choice that is slower than another."""

import math

import pytest

from orch import registry
from orch.errors import OrchError
from orch.plan import AddShadows, AllToAll, Expert, ReturnGradients, ShareExpert, Update, check
from orch.simulate import simulate
from orch.stack import apply, arrange
from orch.testing import mixture, small
from orch.workload import Layout, mixture_training
from techniques.moe import fastermoe
from techniques.moe._shadows import hottest
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


def test_the_greedy_rule_on_the_briefs_example() -> None:
    """Loads 60000, 20000, 10000, 10000 with FastMoE's constants: 839.8 ms, 290.7, 161.4, then 172.2 (brief, section 7)."""
    alpha, hidden, item, bandwidth, rate = 2, 2048, 4, 50e9 / 8, 11.5e12
    row_s = 3 * 4 * alpha * hidden**2 / rate + 4 * hidden * item / bandwidth
    share_s = 2 * alpha * hidden**2 * item / bandwidth
    loads = [60000, 20000, 10000, 10000]
    found = [row_s * loads[number] + number * share_s for number in (0, 1, 2, 3)]
    assert found == pytest.approx([0.8398, 0.2907, 0.1614, 0.1722], abs=5e-5)
    assert hottest(loads, row_s, share_s) == [0, 1]
    assert hottest([10000, 60000, 20000, 10000], row_s, share_s) == [1, 2]
    assert hottest([1.0, 1.0, 1.0], row_s, share_s) == []


def dropless(loads: tuple[float, ...], shadows: int | None = None):
    model = mixture.layers(2, tokens=64, hidden=8, inner=8, experts=8)
    where = mixture.cluster(4, beta_s_per_byte=1e-3, rate_flops=1e4, all_reduce=(0.0, 1e-3))
    plain = mixture_training(model, Layout(4, 4), 2)
    context = small.context(model.spread(4), where)
    return plain, where, fastermoe.rewrite(plain, context, Config(group=1, loads=loads, shadows=shadows))


def test_copies_are_shared_computed_returned_and_added_before_the_update() -> None:
    plain, where, plan = dropless((1, 20, 1, 1, 8, 1, 1, 1), shadows=2)
    (step,) = check(plan, finished=True).steps
    shares = [task.op for task in step.of(ShareExpert) if not isinstance(task.op, ReturnGradients)]
    # Two experts a rank: the second of the first rank, the first of the third.
    assert [(op.expert, op.root) for op in shares] == [(1, 0), (4, 2)] * 2
    shapes = small.context(mixture.layers(hidden=8, inner=8, experts=8), where).parameters
    one = sum(math.prod(shape[1:]) for name, shape in shapes.items() if ".experts." in name)
    assert {op.nbytes for op in shares} == {4 * one}
    places = {task.name: place for place, task in enumerate(step)}
    added = step.of(AddShadows)
    assert [task.op.module for task in added] == ["0.moe", "1.moe"]
    assert max(places[task.name] for task in added) < min(places[task.name] for task in step.of(Update))
    assert {name for task in added for name in task.after} == {task.name for task in step.of(ReturnGradients)}
    moved = [sum(t.op.nbytes for t in one.steps[0].of(AllToAll) if t.op.part == "dispatch") for one in (plain, plan)]
    # 28 of 34 rows stay, and a quarter of the others.
    assert moved[1] == pytest.approx(moved[0] * 6 / 34 * 3 / 4, rel=0.02)


def test_even_loads_have_no_copies_and_no_loads_none() -> None:
    for plan in (dropless((1,) * 8)[2], dropless((20, 1, 1, 1, 1, 1, 1, 1), shadows=0)[2]):
        assert not plan.steps[0].of(ShareExpert)
    assert dropless((40, 1, 1, 1, 1, 1, 1, 1))[2].steps[0].of(ShareExpert)


def test_loads_of_other_experts_are_refused() -> None:
    with pytest.raises(OrchError, match=r"loads of 3 experts, where mixture '0\.moe' has 8"):
        dropless((1, 2, 3))


@pytest.mark.parametrize("schedule", ["wfbp", "dear", "bytescheduler", "s-sgd"])
def test_copies_go_with_every_schedule_of_gradients(schedule: str) -> None:
    model = mixture.layers(2, tokens=16, experts=8)
    where = mixture.cluster(4, beta_s_per_byte=1e-3, rate_flops=1e4, all_reduce=(0.0, 1e-3))
    knobs = {"group": 1, "loads": (1, 20, 1, 1, 8, 1, 1, 1), "shadows": 2}
    members = [small.member(registry.technique(schedule)), small.member(fastermoe.technique, **knobs)]
    plain = mixture_training(model, Layout(4, 4), 2)
    plan, _ = apply(plain, arrange(members, registry.technique), small.context(model.spread(4), where))
    for step in plan.steps:
        assert [task.op.module for task in step.of(AddShadows)] == ["0.moe", "1.moe"]
    assert simulate(plan, where).step_time_s > 0.0
