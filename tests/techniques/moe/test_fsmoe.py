"""FSMoE: the paper's four cases, gradients reduced exactly once however they are cut, and never in the way of rows."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from orch import registry
from orch.plan import AllReduce, AllToAll, Backward, Expert, ExpertBackward, GatherRows, ScatterRows, Update, check
from orch.simulate import simulate
from orch.stack import apply, arrange
from orch.testing import mixture, small
from orch.workload import Layout, mixture_training
from techniques.moe import fsmoe, naive_moe, pipemoe
from techniques.moe._holes import Shape
from techniques.moe._pipeline import makespan
from techniques.moe.fsmoe import Config

STREAMS = ["net.inter", "net.intra", "compute", "net.intra", "net.inter"]
chunk = st.floats(0.01, 10.0)


def four_cases(r: int, a2a: float, ag: float, rs: float, exp: float, gar: float) -> float:
    """Seconds of a crossing by the paper's case distinction (brief, section 4.3)."""
    q1, q2, q3 = a2a > ag, r * exp > 2 * (r - 1) * a2a, r * exp > (r - 1) * (ag + rs)
    q4 = gar > ag + rs
    q5 = gar > r * exp - 2 * (r - 1) * a2a + ag + rs
    q6 = gar > r * ag + r * rs - 2 * (r - 1) * a2a
    q7 = gar > ag + rs + r * exp - 2 * (r - 1) * a2a
    if (q1 and not q2 and q4) or (q1 and q2 and q5) or (not q1 and not q3 and q6) or (not q1 and q3 and q7):
        return 2 * r * a2a + gar
    if (q1 and q2) or (not q1 and q3):
        return 2 * a2a + ag + rs + r * exp
    return 2 * r * a2a + ag + rs if q1 else 2 * a2a + r * (ag + rs)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 8), chunk, chunk, chunk, st.floats(0.0, 50.0))
def test_a_shape_is_the_papers_four_cases(degree: int, a2a: float, ag: float, exp: float, gar: float) -> None:
    assume(min(abs(a2a - ag), 1.0) > 1e-6)
    stages = [[seconds] * degree for seconds in (a2a, ag, exp, ag, a2a)]
    shape = Shape(degree, makespan(stages, STREAMS), 2 * degree * a2a)
    assert shape.with_gradients(gar) == pytest.approx(four_cases(degree, a2a, ag, ag, exp, gar))


def setting(layers: int = 2, *, slices: int = 1, batch: int = 2, all_reduce: tuple[float, float] = (0.1, 0.002)):
    model = mixture.layers(layers, tokens=16, hidden=8, inner=16, experts=4, capacity=1.0)
    layout = Layout(8, 4, slices) if slices > 1 else Layout(4, 4)
    world = layout.world_size
    where = mixture.cluster(world, alpha_s=0.2, beta_s_per_byte=1e-3, rate_flops=2e4, launch_s=0.05,
                            nodes=4 if slices > 1 else 1, intra=(0.1, 5e-4), all_reduce=all_reduce, group=4)  # fmt: skip
    plain = mixture_training(model, layout, batch)
    return model, where, plain, small.context(model.spread(layout.experts, slices), where)


def covered(plan, model) -> None:
    """Every element of every gradient that was sent is sent once, after its backward, and before the update."""
    step = plan.steps[0]
    places = {task.name: index for index, task in enumerate(step)}
    ready = {tensor: places[task.name] for task in step.of(Backward) for tensor in task.op.ready}
    parts: dict[str, list[tuple[int, int]]] = {}
    for task in step.of(AllReduce):
        for segment in task.op.buffer.segments:
            begin = segment.begin or 0
            parts.setdefault(segment.tensor, []).append((begin, begin + segment.numel))
            assert max(places[name] for name in task.after) >= ready[segment.tensor]
    for tensor, spans in parts.items():
        spans.sort()
        assert spans[0][0] == 0
        assert spans[-1][1] == model.tensor(tensor).numel
        assert all(one[1] == two[0] for one, two in pairwise(spans))
    (update,) = [task for task in step.of(Update) if task.name == "update"]
    assert {task.name for task in step.of(AllReduce)} <= set(update.after)
    assert set(parts) == {name for name in model.ready_order if name in parts}


@settings(max_examples=25, deadline=None)
@given(
    st.floats(0.0, 0.5),
    st.floats(1e-5, 0.02),
    st.sampled_from(["1B", "64B", "1KiB", "1MiB"]),
    st.sampled_from([1, 2, 3]),
)
def test_every_gradient_is_reduced_exactly_once(alpha: float, beta: float, smallest: str, layers: int) -> None:
    model, _, plain, context = setting(layers, all_reduce=(alpha, beta))
    plan = check(fsmoe.rewrite(plain, context, Config(smallest=smallest)), finished=True)
    covered(plan, model)
    sent = [task.op.nbytes for step in (plain.steps[0], plan.steps[0]) for task in step.of(AllReduce)]
    assert sum(task.op.nbytes for task in plan.steps[0].of(AllReduce)) * 2 == sum(sent)


def test_gradients_are_cut_to_fit_between_rows_out_and_rows_back() -> None:
    model, where, plain, context = setting(3)
    plan = check(fsmoe.rewrite(plain, context, Config(smallest="16B")), finished=True)
    covered(plan, model)
    step = plan.steps[0]
    assert any(segment.begin is not None for task in step.of(AllReduce) for segment in task.op.buffer.segments)
    net = [task.op for task in step.stream("net.inter")]
    inside = [
        index
        for index, op in enumerate(net)
        if isinstance(op, AllReduce)
        and getattr(net[index - 1], "part", "") == "combine_backward"
        and getattr(net[index + 1], "part", "") == "dispatch_backward"
    ]
    assert inside
    best = {
        name: simulate(technique.rewrite(plain, context, technique.technique.config()), where).step_time_s
        for name, technique in (("naive", naive_moe), ("pipemoe", pipemoe))
    }
    found = simulate(plan, where).step_time_s
    assert found < best["pipemoe"] < best["naive"]


def test_degrees_differ_forward_and_backward_and_three_streams_work_at_once() -> None:
    model, where, plain, context = setting(1, slices=2, batch=2)
    plan = check(fsmoe.rewrite(plain, context, Config()), finished=True)
    covered(plan, model)
    step = plan.steps[0]
    assert len(step.of(Expert)) != len(step.of(ExpertBackward))
    assert (
        {task.stream for task in step.of(GatherRows)} == {task.stream for task in step.of(ScatterRows)} == {"net.intra"}
    )
    spans = [
        span for span in simulate(plan, where).spans(0) if isinstance(span.task.op, AllToAll | GatherRows | Expert)
    ]
    at_once = max(
        len({other.task.stream for other in spans if other.start_s <= span.start_s < other.end_s}) for span in spans
    )
    assert at_once == 3


def test_on_one_network_nothing_is_faster() -> None:
    _, where, plain, context = setting(2, slices=2)
    times = {
        networks: simulate(check(fsmoe.rewrite(plain, context, Config(networks=networks))), where).step_time_s
        for networks in ("both", "one")
    }
    assert times["both"] < times["one"]


def test_what_is_predicted_for_a_crossing_is_what_the_simulator_does() -> None:
    _, where, plain, context = setting(2, batch=4)
    plan = fsmoe.rewrite(plain, context, Config(degree=2, degree_backward=3, smallest="16B"))
    spans = {span.task.name: span for span in simulate(plan, where).spans(0)}
    gradients = plan.steps[0].of(AllReduce)
    for name in ("1.moe", "0.moe"):
        begin = spans[f"restore_backward.{name}"].end_s
        took = spans[f"order_backward.{name}"].start_s - begin
        first = [spans[f"combine_backward.{name}.c{n}"] for n in range(3)]
        last = [spans[f"dispatch_backward.{name}.c{n}"] for n in range(3)]
        middle = [spans[f"expert_backward.{name}.c{n}"] for n in range(3)]
        inside = sum(
            spans[task.name].end_s - spans[task.name].start_s
            for task in gradients
            if first[-1].end_s - 1e-9 <= spans[task.name].start_s < last[0].start_s
        )
        times = [[one.end_s - one.start_s for one in stage] for stage in (first, middle, last)]
        shape = Shape(3, makespan(times, ["net", "compute", "net"]), sum(times[0]) + sum(times[2]))
        late = first[0].start_s - begin  # what a dense stretch's gradients held up
        assert took == pytest.approx(shape.with_gradients(inside) + late, rel=1e-6)


def test_gradients_can_stay_as_the_schedule_left_them() -> None:
    _, _, plain, context = setting()
    plan = fsmoe.rewrite(plain, context, Config(gradients="as-scheduled"))
    assert [task.op for task in plan.steps[0].of(AllReduce)] == [task.op for task in plain.steps[0].of(AllReduce)]


def test_a_model_without_mixtures_is_left_alone() -> None:
    model = mixture.layers(0)
    plain = mixture_training(model, Layout(4), 1)
    assert fsmoe.rewrite(plain, small.context(model, mixture.cluster(4)), Config()) is plain


@pytest.mark.parametrize("schedule", ["wfbp", "bucketed", "mg-wfbp", "dear", "acp-sgd"])
@pytest.mark.parametrize("smallest", ["4B", "64B", "4KiB"])
def test_sends_that_stay_keep_their_names_and_nothing_is_sent_before_it_exists(schedule: str, smallest: str) -> None:
    model = mixture.layers(2, tokens=6, experts=4)
    layout = Layout(4, 2)
    where = mixture.cluster(4, alpha_s=1e-4, beta_s_per_byte=1e-6, rate_flops=1e7, all_reduce=(0.0, 1e-6))
    plain = mixture_training(model, layout, 1)
    members = [small.member(registry.technique(schedule)), small.member(fsmoe.technique, smallest=smallest)]
    plan, _ = apply(plain, arrange(members, registry.technique), small.context(model.spread(2), where))
    own = {task.name for task in plan.steps[0].of(AllReduce) if task.group == "replicas"}
    assert schedule == "dear" or own
    if schedule not in ("dear", "acp-sgd"):
        covered(plan, model.spread(2))
