"""PipeMoE: the brief's worked examples, and the closed form against the simulator and against every degree."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orch.plan import AllToAll, Expert, ExpertBackward, check, crossings, cut_crossings
from orch.simulate import simulate
from orch.testing import mixture, small
from orch.workload import Layout, mixture_training
from techniques.moe import pipemoe
from techniques.moe._pipeline import best_degree, closed_form, makespan

# Constants of the authors' repository, RTX 2080 Ti, fp32: seconds a multiply-add, start-up of a product; exchanges by P.
RATE, LAUNCH = 2 / 1.492e-13, 1.5e-4
EXCHANGE = {16: (5.70e-4, 2.96e-10), 32: (2.09e-4, 3.55e-10), 64: (7.83e-4, 3.84e-10)}


def crossed_s(world, hidden, inner, degree, *, batch=8):
    """Seconds of a forward crossing, in the paper's setting: as many experts as ranks, k = 2, f = 1."""
    model = mixture.layers(tokens=1024, hidden=hidden, inner=inner, experts=world, top_k=2, capacity=1.0)
    alpha, beta = EXCHANGE[world]
    where = mixture.cluster(world, alpha_s=alpha, beta_s_per_byte=beta, rate_flops=RATE, launch_s=LAUNCH)
    plain = mixture_training(model, Layout(world, world), batch)
    plan = check(pipemoe.rewrite(plain, small.context(model, where), pipemoe.Config(degree=degree)))
    return forward_s(plan, where), len(plan.steps[0].of(Expert))


def forward_s(plan, where):
    """Seconds from the end of `order` to the start of `restore`."""
    found = {span.task.name: span for span in simulate(plan, where).spans(0)}
    return found["restore.0.moe"].start_s - found["order.0.moe"].end_s


@pytest.mark.parametrize(
    ("world", "hidden", "inner", "expected", "chosen"),
    [
        (32, 1024, 2048, [58.62, 48.48, 48.90, 49.32], 2),
        (16, 4096, 4096, [242.38, 163.22, 162.33, 163.47], 3),
    ],
)
def test_the_worked_examples_of_the_brief(world, hidden, inner, expected, chosen):
    for degree, milliseconds in enumerate(expected, start=1):
        found, number = crossed_s(world, hidden, inner, degree)
        assert number == degree
        # Three chunks are not alike: 512 or 1,024 slots leave one over.
        assert found * 1e3 == pytest.approx(milliseconds, abs=0.06 if degree == 3 else 0.006)
    found, number = crossed_s(world, hidden, inner, None)
    assert number == chosen
    assert found <= min(crossed_s(world, hidden, inner, degree)[0] for degree in range(1, 9)) * (1 + 1e-12)


times = st.floats(0.001, 10.0)


@given(times, times, st.integers(1, 12))
def test_the_closed_form_is_what_the_streams_do(exchange, expert, degree):
    stages = [[exchange] * degree, [expert] * degree, [exchange] * degree]
    assert closed_form(exchange, expert, degree) == pytest.approx(makespan(stages, ["net", "compute", "net"]))


@settings(max_examples=12, deadline=None)
@given(
    st.floats(0.0, 2.0),
    st.floats(0.0, 0.01),
    st.floats(0.0, 1.0),
    st.floats(100.0, 1e5),
    st.sampled_from([1.0, 1.25]),
    st.integers(1, 4),
)
def test_no_degree_is_better_than_the_chosen_one(alpha, beta, launch, rate, capacity, batch):
    # With a capacity: counts, which cost a little more a chunk, are in no crossing.
    model = mixture.layers(tokens=24, capacity=capacity)
    where = mixture.cluster(4, alpha_s=alpha, beta_s_per_byte=beta, rate_flops=rate, launch_s=launch)
    context = small.context(model, where)
    plain = mixture_training(model, Layout(4, 4), batch)
    chosen = simulate(pipemoe.rewrite(plain, context, pipemoe.Config(most=6)), where).step_time_s
    for there in range(1, 7):
        for back in range(1, 7):
            plan = pipemoe.rewrite(plain, context, pipemoe.Config(degree=there, degree_backward=back))
            assert chosen <= simulate(plan, where).step_time_s * (1 + 1e-9)


def test_forward_and_backward_have_degrees_of_their_own_and_nothing_is_lost():
    model = mixture.layers(2, tokens=7, capacity=None)
    where = mixture.cluster(4, alpha_s=1.0, beta_s_per_byte=0.1)
    plain = mixture_training(model, Layout(4, 4), 1)
    plan = check(pipemoe.rewrite(plain, small.context(model, where), pipemoe.Config(degree=3, degree_backward=2)))
    step = plan.steps[0]
    assert [(t.op.begin, t.op.end) for t in step.of(Expert) if t.op.module == "0.moe"] == [(0, 2), (2, 4), (4, 7)]
    backward = [t.op for t in step.of(ExpertBackward) if t.op.module == "0.moe"]
    assert [(op.begin, op.end) for op in backward] == [(0, 3), (3, 7)]
    # The gradients of the experts exist once, after the last chunk.
    assert [bool(op.ready) for op in backward] == [False, True]
    for part in ("dispatch", "combine", "combine_backward", "dispatch_backward"):
        chunks = [t for t in step.of(AllToAll) if t.op.part == part and t.op.module == "1.moe"]
        assert sum(t.op.nbytes for t in chunks) == 7 * 2 * 4 * 4
    # Cut at 2, 3 and 4 of 7 tokens: four cells of four experts, told as 8-byte numbers.
    counts = [t.op.nbytes for t in step.of(AllToAll) if t.op.part == "counts"]
    assert counts == [4 * 4 * 8] * 2
    order = [t.op.part for t in step.stream("net.inter") if isinstance(t.op, AllToAll) and t.op.module == "0.moe"]
    assert order == [
        "counts",
        *["dispatch"] * 3,
        *["combine"] * 3,
        *["combine_backward"] * 2,
        *["dispatch_backward"] * 2,
    ]


def test_one_rank_with_all_experts_is_left_whole():
    model = mixture.layers()
    where = mixture.cluster(1)
    plain = mixture_training(model, Layout(1), 1)
    assert pipemoe.rewrite(plain, small.context(model, where), pipemoe.Config()) is plain


def test_a_degree_beyond_the_positions_makes_one_chunk_a_position():
    model = mixture.layers(tokens=3)
    plain = mixture_training(model, Layout(4, 4), 1)
    plan = check(cut_crossings(plain, lambda crossing: 64))
    assert len(plan.steps[0].of(Expert)) == 3


def test_the_choice_weighs_start_ups():
    model = mixture.layers(tokens=64)
    plain = mixture_training(model, Layout(4, 4), 1)
    forward = next(crossings(plain.steps[0]))
    dear = mixture.cluster(4, alpha_s=1.0, beta_s_per_byte=1e-6, rate_flops=1e6)
    cheap = mixture.cluster(4, alpha_s=0.0, beta_s_per_byte=1e-3, rate_flops=1e3)
    assert best_degree(plain, small.context(model, dear), forward, 8) == 1
    assert best_degree(plain, small.context(model, cheap), forward, 8) == 8
    assert math.isclose(closed_form(1.0, 2.0, 4), 10.0)
