"""Mast: the brief's worked examples, that a search never loses to the default order, and that equal seeds find equal orders."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orch.models.mixture import BertMoeKnobs, CharMoeKnobs, bert_moe_profile, char_moe_profile
from orch.plan import Attend, Expert, check
from orch.simulate import simulate
from orch.testing import mixture, small
from orch.workload import Layout, mixture_training
from techniques.moe import mast
from techniques.moe._chain import BACK, DENSE, EXPERT, OUT, SHORT, Work
from techniques.moe._pipeline import closed_form
from techniques.moe._planner import Costs
from techniques.moe._search import default_order, searched
from tests.techniques.moe.test_sp_moe import setting

KINDS = (DENSE, OUT, SHORT, OUT, EXPERT, BACK, SHORT, BACK)
# Milliseconds of the repository's eight operations, a chunk.
GPT = (1.455, 0.840, 0.562, 1.312, 0.558, 1.288, 0.118, 0.717)
MIXTRAL = (2.5, 2.0, 0.25, 1.45, 4.257, 1.45, 0.117, 1.8)
QWEN = (1.4, 1.3, 0.4, 8.7, 0.9, 8.7, 0.03, 1.0)


def work(times, chunks=4, layers=1):
    """The repository's chains: eight operations a layer and chunk, computing and communicating by turns."""
    rows, places = [], {}
    for layer in range(layers):
        for op, seconds in enumerate(times):
            for chunk in range(chunks):
                before = places.get((layer, op - 1, chunk) if op else (layer - 1, 7, chunk))
                places[layer, op, chunk] = len(rows)
                stream = "net" if op % 2 else "compute"
                rows.append(((layer, op, chunk), KINDS[op], seconds, stream, () if before is None else (before,)))
    return Work(*(tuple(column) for column in zip(*rows, strict=True)))


@pytest.mark.parametrize(
    ("times", "serial", "default", "found", "bound"),
    [(GPT, 27.40, 19.93, 18.70, 16.63), (MIXTRAL, 55.30, 39.13, 33.27, 28.50), (QWEN, 89.72, 80.50, 80.30, 78.80)],
)
def test_the_worked_examples_of_the_brief(times, serial, default, found, bound):
    four = work(times)
    assert sum(four.seconds) == pytest.approx(serial, abs=0.005)
    assert four.makespan(default_order(four)) == pytest.approx(default, abs=0.005)
    order = searched(four, 500, 0)
    four.check(order)
    assert four.bound() == pytest.approx(bound, abs=0.005)
    assert bound - 0.005 < four.makespan(order) < found + 0.005


def test_attention_left_serial_as_pipemoe_leaves_it():
    apart = 4 * sum(GPT[op] for op in (0, 1, 2, 6, 7))
    assert apart + closed_form(GPT[3], GPT[4], 4) == pytest.approx(25.26, abs=0.005)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(0.01, 9.0), min_size=8, max_size=8),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 2),
    st.integers(0, 9),
)
def test_a_search_never_loses_and_repeats_itself(times, chunks, layers, seed):
    chain = work(times, chunks, layers)
    order = searched(chain, 40, seed)
    searched.cache_clear()
    assert searched(chain, 40, seed) == order
    chain.check(order)
    chain.check(default_order(chain))
    assert chain.makespan(order) <= chain.makespan(default_order(chain)) <= sum(chain.seconds) * (1 + 1e-12)


@pytest.mark.parametrize(("dense", "degree", "layers"), [(4, 2, 1), (2, 8, 1), (3, 3, 2)])
def test_it_is_planned_as_it_is_simulated(dense, degree, layers):
    plain, context, where = setting(batch=8, beta=4e-7, rate=1.5e8, sent=0.0)
    config = mast.Config(degree_dense=dense, degree=degree, layers=layers, trials=30)
    plan = check(mast.rewrite(plain, context, config), finished=True)
    assert simulate(plan, where).step_time_s == pytest.approx(Costs(plain, context).finish_s(plan.steps[0]))
    assert (len(plan.steps[0].of(Attend)), len(plan.steps[0].of(Expert))) == (2 * dense, 2 * degree)
    assert {task.op.axis for task in plan.steps[0].of(Attend)} == {"samples"}
    searched.cache_clear()
    assert mast.rewrite(plain, context, config) == plan


def test_orders_and_degrees_gain():
    plain, context, where = setting(layers=8, batch=8, beta=4e-7, rate=1.5e8, sent=0.0)

    def step_s(**knobs):
        return simulate(check(mast.rewrite(plain, context, mast.Config(trials=50, **knobs))), where).step_time_s

    whole = simulate(plain, where).step_time_s
    default = step_s(order="default", degrees="alike")
    alike = step_s(degrees="alike")
    assert step_s(order="default", degrees="apart") <= default < 0.7 * whole
    assert step_s(degrees="apart") <= alike * (1 + 1e-12) < default
    assert step_s(degrees="alike", most=1) == pytest.approx(whole)


def test_one_sample_leaves_nothing_to_cut():
    plain, context, where = setting(batch=1, sent=0.0)
    plan = mast.rewrite(plain, context, mast.Config(degrees="alike"))
    assert simulate(plan, where).step_time_s == pytest.approx(simulate(plain, where).step_time_s)


@pytest.mark.parametrize("tokens", ["whole", "shares"])
def test_what_ranks_that_share_samples_tell_one_another_is_a_task_of_the_order(tokens):
    """Its operations 1 and 7: on a network of their own beside rows (its pairs), or on the same one."""
    model = char_moe_profile(CharMoeKnobs(num_layers=2, seq_len=8, hidden=8, num_heads=2, vocab=16, every=1))
    where = mixture.cluster(4, beta_s_per_byte=4e-7, rate_flops=1e8, nodes=2, intra=(0.0, 4e-7), group=4)
    layout = Layout.of(4, model.mixtures, tensor=2, tokens=tokens)
    local = layout.local(model)
    plain, context = mixture_training(model, layout, 4), small.context(local, where, batch=4)
    found = {}
    for networks in ("both", "one"):
        config = mast.Config(degree_dense=2, degree=2, trials=30, networks=networks)
        plan = check(mast.rewrite(plain, context, config), finished=True)
        step = plan.steps[0]
        assert simulate(plan, where).step_time_s == pytest.approx(Costs(plan, context).finish_s(step))
        met = [task for task in step if task.group == "tensor"]
        assert {task.stream for task in met} == {"net.intra" if networks == "both" else "net.inter"}
        assert len(met) == 2 * 2 * (2 if tokens == "whole" else 4)
        sizes = [sum(task.op.nbytes for task in one if task.group == "tensor") for one in (plain.steps[0], step)]
        assert sizes[0] == sizes[1]
        found[networks] = simulate(plan, where).step_time_s
    assert found["both"] < found["one"] < simulate(plain, where).step_time_s


def test_samples_are_cut_where_tokens_look_ahead():
    model = bert_moe_profile(BertMoeKnobs(num_layers=4, seq_len=8, hidden=8, num_heads=2, vocab=16, positions=8))
    where = mixture.cluster(4, beta_s_per_byte=1e-6, rate_flops=1e8)
    layout = Layout.of(4, model.mixtures)
    plain, context = mixture_training(model, layout, 4), small.context(model.spread(4), where, batch=4)
    plan = check(mast.rewrite(plain, context, mast.Config(trials=20)), finished=True)
    assert simulate(plan, where).step_time_s < 0.9 * simulate(plain, where).step_time_s
