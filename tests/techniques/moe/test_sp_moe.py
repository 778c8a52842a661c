"""SP-MoE: the brief's worked examples, what it refuses, and that it is never slower than PipeMoE on the simulator."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orch.errors import OrchError
from orch.models.mixture import BertMoeKnobs, CharMoeKnobs, bert_moe_profile, char_moe_profile
from orch.plan import Attend, AttendBackward, Expert, ExpertBackward, GateBackward, bounds, check
from orch.recipe import load
from orch.simulate import simulate
from orch.testing import mixture, small
from orch.workload import Layout, mixture_training
from techniques.moe import pipemoe, sp_moe
from techniques.moe._chain import (
    BACK,
    DENSE,
    EXPERT,
    OUT,
    POLICIES,
    Work,
    aligned,
    by_policy,
    greedy,
    layer_by_layer,
)
from techniques.moe._gaps import filled
from techniques.moe._planner import Costs, Cut, Planner


def work(layers, dense, exchange, expert, chunks=None):
    """The brief's graph: attention of each chunk, and as many chunks of mixtures or `chunks`; both divide one another."""
    chunks = chunks or len(dense)
    rows, places = [], {}

    def add(key, kind, seconds, stream, before):
        places[key] = len(rows)
        rows.append((key, kind, seconds, stream, tuple(places[other] for other in before if other in places)))

    for layer in range(layers):
        for j, seconds in enumerate(dense):
            share = chunks // len(dense) or 1
            behind = [(layer - 1, 3, i) for i in range(j * share, (j + 1) * share)]
            add((layer, 0, j), DENSE, seconds, "compute", [(layer, 0, j - 1), *behind])
        for i in range(chunks):
            add((layer, 1, i), OUT, exchange, "net", [(layer, 0, i * len(dense) // chunks)])
        for i in range(chunks):
            add((layer, 2, i), EXPERT, expert, "compute", [(layer, 1, i)])
        for i in range(chunks):
            add((layer, 3, i), BACK, exchange, "net", [(layer, 2, i)])
    return Work(*(tuple(column) for column in zip(*rows, strict=True)))


@pytest.mark.parametrize(
    ("layers", "serial", "pipelined", "chained"), [(1, 28, 24, 20), (2, 56, 48, 37), (4, 112, 96, 71)]
)
def test_the_worked_examples_of_the_brief(layers, serial, pipelined, chained):
    both = work(layers, [3, 5], 4, 2)
    assert sum(both.seconds) == serial
    whole = work(layers, [8], 4, 2, chunks=2)  # all of attention first, then the mixture in two chunks
    assert whole.makespan(layer_by_layer(whole, by_policy(whole, None))) == pipelined
    assert both.makespan(by_policy(both, None)) == chained


def test_four_chunks_of_unequal_attention():
    four = work(4, [1.25, 1.75, 2.25, 2.75], 2, 1)
    assert sum(four.seconds) == 112
    whole = work(4, [8], 2, 1, chunks=4)
    assert whole.makespan(layer_by_layer(whole, by_policy(whole, None))) == 96
    assert four.makespan(by_policy(four, None)) == 65.25
    assert {name: four.makespan(greedy(four, policy)) for name, policy in POLICIES.items()}["expert-out"] == 65.25


def test_an_order_that_waits_for_what_comes_later_is_refused():
    both = work(1, [3, 5], 4, 2)
    with pytest.raises(ValueError, match="stands before"):
        both.check(list(reversed(range(len(both.keys)))))
    with pytest.raises(ValueError, match="once"):
        both.check([0, 0])


def setting(
    world=4,
    *,
    layers=4,
    seq=24,
    capacity=None,
    alpha=1e-4,
    beta=1e-6,
    rate=1e8,
    launch=0.0,
    batch=2,
    every=2,
    sent=None,
):
    """A character model with mixtures, its plain plan and what passes may ask."""
    knobs = CharMoeKnobs(
        num_layers=layers, seq_len=seq, hidden=8, num_heads=2, vocab=16, capacity=capacity, every=every
    )
    model = char_moe_profile(knobs)
    where = mixture.cluster(world, alpha_s=alpha, beta_s_per_byte=beta, rate_flops=rate, launch_s=launch,
                            all_reduce=(0.0, beta if sent is None else sent))  # fmt: skip
    layout = Layout.of(world, model.mixtures)
    context = small.context(model.spread(layout.experts), where, batch=batch)
    return mixture_training(model, layout, batch), context, where


def test_it_is_planned_as_it_is_simulated():
    plain, context, where = setting()
    plan = check(sp_moe.rewrite(plain, context, sp_moe.Config(degree_dense=3, degree=2)), finished=True)
    assert simulate(plan, where).step_time_s == pytest.approx(Costs(plain, context).finish_s(plan.steps[0]))
    assert len(plan.steps[0].of(Attend)) == 2 * 3
    assert len(plan.steps[0].of(Expert)) == 2 * 2


def test_backward_has_degrees_of_its_own():
    plain, context, where = setting()
    config = sp_moe.Config(degree_dense=4, degree=2, degree_dense_backward=2, degree_backward=6)
    step = check(sp_moe.rewrite(plain, context, config), finished=True).steps[0]
    assert (len(step.of(Attend)), len(step.of(AttendBackward))) == (2 * 4, 2 * 2)
    assert (len(step.of(Expert)), len(step.of(ExpertBackward)), len(step.of(GateBackward))) == (2 * 2, 2 * 6, 2 * 2)
    plan = sp_moe.rewrite(plain, context, config)
    assert simulate(plan, where).step_time_s == pytest.approx(Costs(plain, context).finish_s(plan.steps[0]))
    with pytest.raises(ValueError, match="degree_backward is a multiple of degree, and they are 3 and 2"):
        sp_moe.Config(degree=2, degree_backward=3)
    with pytest.raises(ValueError, match="degree_dense_backward divides degree_dense, and they are 3 and 4"):
        sp_moe.Config(degree_dense=4, degree_dense_backward=3)


def test_a_backward_that_was_chosen_is_no_slower_than_that_of_forward():
    """Rows are short beside experts, and these take twice as long backward: more chunks of them end sooner."""
    plain, context, where = setting(layers=4, beta=2e-7, rate=1e8, alpha=0.0, sent=0.0)
    fixed = {"degree_dense": 2, "degree": 2}
    chosen = sp_moe.rewrite(plain, context, sp_moe.Config(**fixed))
    alike = sp_moe.rewrite(plain, context, sp_moe.Config(**fixed, degree_backward=2, degree_dense_backward=2))
    assert len(chosen.steps[0].of(ExpertBackward)) > len(alike.steps[0].of(ExpertBackward))
    assert simulate(chosen, where).step_time_s < simulate(alike, where).step_time_s


def test_uncut_it_takes_what_the_plain_plan_takes():
    # Gradients free: those of a stage come together here, behind its last task.
    plain, context, where = setting(capacity=1.5, launch=1e-5, sent=0.0)
    plan = sp_moe.rewrite(plain, context, sp_moe.Config(degree_dense=1, degree=1, degree_backward=1))
    assert simulate(plan, where).step_time_s == pytest.approx(simulate(plain, where).step_time_s)


@settings(max_examples=8, deadline=None)
@given(
    st.floats(0.0, 1e-3),
    st.floats(0.0, 1e-6),
    st.floats(0.0, 1e-4),
    st.floats(1e7, 1e10),
    st.sampled_from([None, 1.0, 1.3]),
    st.sampled_from([None, 1, 2, 4]),
    st.sampled_from([1, 2]),
)
def test_it_is_never_slower_than_pipemoe(alpha, beta, launch, rate, capacity, degree, every):
    plain, context, where = setting(alpha=alpha, beta=beta, launch=launch, rate=rate, capacity=capacity, every=every)
    ours = sp_moe.rewrite(plain, context, sp_moe.Config(degree=degree, smallest=1))
    theirs = pipemoe.rewrite(plain, context, pipemoe.Config(degree=degree, degree_backward=degree))
    assert simulate(check(ours), where).step_time_s <= simulate(theirs, where).step_time_s * (1 + 1e-9)


def test_attention_hides_where_rows_are_long():
    """At the same degree of mixtures, exchanges as long as all that computes: attention goes beside them."""
    plain, context, where = setting(layers=8, beta=4e-7, rate=1.5e8, alpha=0.0, sent=0.0)
    theirs = simulate(pipemoe.rewrite(plain, context, pipemoe.Config()), where).step_time_s
    found = simulate(sp_moe.rewrite(plain, context, sp_moe.Config(smallest=1)), where).step_time_s
    assert found < 0.8 * theirs
    apart = sp_moe.rewrite(plain, context, sp_moe.Config(smallest=1, cross_layer=False))
    assert found < simulate(apart, where).step_time_s < theirs


def test_short_chunks_are_not_chosen():
    plain, context, _ = setting(layers=8, beta=2e-7, rate=1.5e8, alpha=0.0)
    for smallest, most in ((24, 1), (12, 2), (6, 4)):
        plan = sp_moe.rewrite(plain, context, sp_moe.Config(smallest=smallest))
        attends = len(plan.steps[0].of(Attend)) // 4
        assert attends <= most


def test_balanced_chunks_compute_equally_much():
    found = sp_moe.dense_bounds(1000, 4, 0.5, "balanced")
    cost = [0.5 * (b - a) / 1000 + 0.5 * (b * b - a * a) / 1000**2 for a, b in pairwise(found)]
    assert cost == pytest.approx([0.25] * 4, abs=1e-3)
    assert sp_moe.dense_bounds(11, 2, 0.5, "equal") == bounds(11, 2) == (0, 5, 11)


@pytest.mark.parametrize(
    ("degree", "expected"), [(1, (0, 11)), (2, (0, 5, 11)), (4, (0, 2, 5, 8, 11)), (8, (0, 1, 2, 3, 5, 6, 8, 9, 11))]
)
def test_mixtures_are_cut_where_attention_is(degree, expected):
    assert aligned((0, 2, 5, 8, 11) if degree < 4 else (0, 5, 11), degree) == expected


def test_models_that_look_ahead_are_refused():
    model = bert_moe_profile(BertMoeKnobs(num_layers=2, seq_len=8, hidden=8, num_heads=2, vocab=16, positions=8))
    where = mixture.cluster(2)
    plain, context = mixture_training(model, Layout.of(2, model.mixtures), 1), small.context(model, where)
    with pytest.raises(OrchError, match="each looks at later ones too") as error:
        sp_moe.rewrite(plain, context, sp_moe.Config())
    assert error.value.code == "E414"
    for gate in ("expert-choice", "soft"):
        knobs = BertMoeKnobs(num_layers=2, seq_len=8, hidden=8, num_heads=2, vocab=16, positions=8, gate=gate)
        model = bert_moe_profile(knobs)
        plain, context = mixture_training(model, Layout.of(2, model.mixtures), 1), small.context(model, where)
        with pytest.raises(OrchError, match="cannot be cut"):
            sp_moe.rewrite(plain, context, sp_moe.Config())


def test_a_layer_that_was_cut_already_is_refused():
    plain, context, _ = setting()
    cut = pipemoe.rewrite(plain, context, pipemoe.Config(degree=2))
    with pytest.raises(OrchError, match="cut before"):
        Planner.of(cut, cut.steps[0], context, "tokens")


@pytest.mark.parametrize(("capacity", "lossless"), [(["model.capacity=1.2"], False), ([], True)])
def test_it_is_exact_where_no_token_is_dropped(capacity, lossless):
    recipe = load("char-moe", [*capacity, "stacks.chain=[sp-moe]", "stacks.mast=[mast]"])
    assert recipe.stacks["pipemoe"].lossless
    assert [recipe.stacks[name].lossless for name in ("chain", "mast")] == [lossless, lossless]


def test_gradients_in_holes_are_all_there_and_never_later_than_the_better_of_soon_and_late():
    plain, context, _ = setting(layers=6, beta=3e-7, rate=1.5e8, alpha=0.0, sent=1e-6)
    planner = Planner.of(plain, plain.steps[0], context, "tokens")
    cut = Cut.alike(bounds(24, 2), bounds(24, 2))
    orders = [by_policy(planner.work(way, cut), None) for way in (0, 1)]
    soon, late = (planner.step(cut, orders, late=late) for late in (False, True))
    for slack in (0.0, 0.5):
        step = filled(soon, planner.costs.seconds, slack)
        check(plain.each_step(lambda _, step=step: step), finished=True)
        assert sorted(task.name for task in step) == sorted(task.name for task in soon)
    # Holes that a send fits delay no row, so only what waits for the sends can end later.
    tight = filled(soon, planner.costs.seconds, 0.0)
    assert planner.costs.finish_s(tight) < planner.costs.finish_s(late)
    best = planner.best_step(cut, orders)
    assert planner.costs.finish_s(best) <= min(map(planner.costs.finish_s, (soon, late, tight)))
