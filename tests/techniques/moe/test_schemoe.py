"""ScheMoE: the brief's worked example, the order against every other one, and what its plans look like."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orch import registry
from orch.plan import AllToAll, Expert, RecodeRows, UnpackRows, crossings, from_json, to_json
from orch.simulate import simulate
from orch.stack import apply, arrange, is_lossless
from orch.testing import mixture, small
from orch.testing.contract import TechniqueContract
from orch.workload import Layout, mixture_training
from techniques.moe import bf16_rows, int8_rows, pipemoe, schemoe
from techniques.moe._pipeline import makespan

CHAIN = ["compute", "net", "compute", "compute", "compute", "net", "compute"]


def setting(nodes: int = 2, capacity: float | None = 1.0, **costs):
    model = mixture.layers(2, tokens=16, hidden=8, inner=16, experts=4, capacity=capacity)
    facts = {"alpha_s": 0.2, "beta_s_per_byte": 1e-3, "rate_flops": 2e4, "intra": (0.1, 5e-4)} | costs
    where = mixture.cluster(4, nodes=nodes, **facts)
    return model, where, mixture_training(model, Layout(4, 4), 2), small.context(model, where)


def packed(capacity: float | None = 1.0):
    """Return a crossing of seven stages: pack, dispatch, unpack, expert, pack, combine, unpack."""
    _, _, plain, context = setting(1, capacity)
    return next(crossings(int8_rows.rewrite(plain, context, int8_rows.Config()).steps[0]))


@pytest.mark.parametrize(("order", "expected"), [("optsche", 20), ("tutel", 23), ("breadth", 26), ("serial", 30)])
def test_the_worked_example_of_the_brief(order: str, expected: float) -> None:
    crossing = packed()
    times = [[seconds] * 2 for seconds in (1, 4, 1, 3, 1, 4, 1)]
    assert makespan(times, CHAIN, crossing.before, schemoe.orders(crossing, 2, order)) == expected


def best_of_all(times: list[float], chunks: int) -> tuple[int, float]:
    """Return how many orders of computing there are, and the least makespan: every interleaving of the chunks' five tasks.

    An exchange is asked for when its packing ends, so they queue in that order. All prefixes are walked at once.
    """
    compress, exchange, decompress, expert = times[0], times[1], times[2], times[3]
    seconds = np.array([compress, decompress, expert, compress, decompress])
    done = np.zeros((1, chunks), dtype=np.int64)  # tasks of each chunk that have ended
    clock, net = np.zeros(1), np.zeros(1)
    arrived = np.zeros((1, chunks))
    for _ in range(5 * chunks):
        parts = []
        for chunk in range(chunks):
            rows = np.flatnonzero(done[:, chunk] < 5)
            task = done[rows, chunk]
            waits = np.isin(task, (1, 4))  # unpacking waits for what the last packing sent
            start = np.where(waits, np.maximum(clock[rows], arrived[rows, chunk]), clock[rows])
            end = start + seconds[task]
            sends = np.isin(task, (0, 3))
            sent = np.where(sends, np.maximum(net[rows], end) + exchange, net[rows])
            new_done, new_arrived = done[rows].copy(), arrived[rows].copy()
            new_done[:, chunk] += 1
            new_arrived[sends, chunk] = sent[sends]
            parts.append((new_done, end, sent, new_arrived))
        done, clock, net, arrived = (np.concatenate(column) for column in zip(*parts, strict=True))
    return len(clock), float(clock.min())


seconds = st.floats(0.01, 10.0)


@settings(max_examples=60, deadline=None)
@given(seconds, seconds, seconds, seconds)
def test_no_order_of_two_chunks_ends_sooner(pack: float, exchange: float, unpack: float, expert: float) -> None:
    times = [pack, exchange, unpack, expert, pack, exchange, unpack]
    crossing = packed()
    number, least = best_of_all(times, 2)
    found = makespan([[one] * 2 for one in times], CHAIN, crossing.before, schemoe.orders(crossing, 2, "optsche"))
    assert number == 252
    assert found == pytest.approx(least)


@pytest.mark.parametrize("times", [(1, 4, 1, 3, 1, 4, 1)])
def test_no_order_of_three_chunks_ends_sooner(times: tuple[float, ...]) -> None:
    number, least = best_of_all(list(times), 3)
    crossing = packed()
    found = makespan([[one] * 3 for one in times], CHAIN, crossing.before, schemoe.orders(crossing, 3, "optsche"))
    assert number == 756_756
    assert found == pytest.approx(least)


@pytest.mark.parametrize("order", ["optsche", "tutel", "breadth", "serial"])
@pytest.mark.parametrize("others", [("int8-rows",), ("bf16-rows", "two-level-a2a"), ()])
def test_the_plan_takes_what_was_predicted_for_it(order: str, others: tuple[str, ...]) -> None:
    _model, where, plain, context = setting()
    knobs = {"degree": 2, "degree_backward": 3, "order": order}
    members = [small.member(registry.technique(name)) for name in others]
    stack = arrange([small.member(schemoe.technique, **knobs), *members], registry.technique)
    plan, _ = apply(plain, stack, context)
    assert from_json(to_json(plan)) == plan
    step = plan.steps[0]
    spans = {span.task.name: span for span in simulate(plan, where).spans(0)}
    before, _ = apply(plain, [member for member in stack if member.name != "schemoe"], context)
    for crossing in crossings(before.steps[0]):
        if crossing.module != "0.moe" or crossing.backward:
            continue
        chunks = crossing.cut(2)
        times = [[spans[task.name].end_s - spans[task.name].start_s for task in stage] for stage in chunks]
        streams = [task.stream for task in crossing.stages]
        expected = makespan(times, streams, crossing.before, schemoe.orders(crossing, 2, order))
        assert spans["restore.0.moe"].start_s - spans["order.0.moe"].end_s == pytest.approx(expected)
    computing = [task.name for task in step.stream("compute") if isinstance(task.op, Expert | RecodeRows)]
    assert len(computing) == len(set(computing))
    assert is_lossless(stack) is (not any(name.endswith("-rows") for name in others))


def test_optsche_is_never_slower_than_other_orders_and_sends_a_chunk_as_soon_as_it_is_packed() -> None:
    _model, where, plain, context = setting(1)
    coded = int8_rows.rewrite(plain, context, int8_rows.Config())
    times = {
        order: simulate(schemoe.rewrite(coded, context, schemoe.Config(order=order)), where).step_time_s
        for order in ("optsche", "tutel", "breadth", "serial")
    }
    assert times["optsche"] == min(times.values())
    plan = schemoe.rewrite(coded, context, schemoe.Config(degree=2))
    names = [task.name for task in plan.steps[0].stream("compute") if "0.moe" in task.name][:12]
    assert names == [
        "forward.0.moe.gate",
        "order.0.moe",
        "pack.dispatch.0.moe.c0",
        "pack.dispatch.0.moe.c1",
        *(f"{task}.0.moe.c{chunk}" for chunk in (0, 1) for task in ("unpack.dispatch", "expert", "pack.combine")),
        "unpack.combine.0.moe.c0",
        "unpack.combine.0.moe.c1",
    ]


def test_rows_that_travel_as_they_are_on_one_network_have_one_order_only() -> None:
    _, _, plain, context = setting(1, launch_s=0.05)
    mine, theirs = (one.rewrite(plain, context, one.Config()) for one in (schemoe, pipemoe))
    assert [t.name for t in mine.steps[0].stream("compute")] == [t.name for t in theirs.steps[0].stream("compute")]
    assert [t.name for t in mine.steps[0].stream("net.inter")] == [t.name for t in theirs.steps[0].stream("net.inter")]


def test_its_stack_takes_the_halves_side_by_side_unless_told() -> None:
    names = {member.name for member in arrange([small.member(schemoe.technique)], registry.technique)}
    assert names == {"schemoe", "pipe-a2a", "bucketed"}
    given = [small.member(registry.technique(name)) for name in ("schemoe", "pairwise-a2a")]
    assert "pipe-a2a" not in {member.name for member in arrange(given, registry.technique)}


@pytest.mark.parametrize("codec", [bf16_rows, int8_rows])
def test_gradients_of_rows_may_travel_as_they_are(codec) -> None:
    _, _, plain, context = setting(1, None)
    plan = codec.rewrite(plain, context, codec.Config(gradients=False))
    packings = [task.op for task in plan.steps[0].of(RecodeRows)]
    assert {op.part for op in packings} == {"dispatch", "combine"}
    assert sum(isinstance(op, UnpackRows) for op in packings) * 2 == len(packings)
    sizes = {task.op.part: task.op.nbytes for task in plan.steps[0].of(AllToAll)}
    assert sizes["dispatch"] < sizes["combine_backward"] == 16 * 2 * 2 * 8 * 4


class TestSchemoe(TechniqueContract):
    technique = schemoe.technique
    worlds = (1, 2)
