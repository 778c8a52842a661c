"""Chains of layers: every chunk waits for those it shares units with, every task runs once, and gradients leave when they exist."""

from dataclasses import replace
from itertools import pairwise

import pytest

from orch.errors import OrchError
from orch.models.mixture import CharMoeKnobs, char_moe_profile
from orch.plan import (
    COMPUTE,
    SAMPLES,
    TOKENS,
    Attend,
    AttendBackward,
    Collective,
    Expert,
    GateBackward,
    Order,
    PlanError,
    Rows,
    bounds,
    chained,
    check,
    from_json,
    to_json,
)
from orch.workload import Layout, mixture_training, retimed

BATCH = 4


def plain(capacity=None, world=4):
    model = char_moe_profile(
        CharMoeKnobs(num_layers=4, seq_len=10, hidden=8, num_heads=2, vocab=16, experts=4, capacity=capacity)
    )
    return model, mixture_training(model, Layout.of(world, model.mixtures), BATCH)


def cut(model, plan, dense, mixed, *, axis=TOKENS, late=False, turn=None):
    step = chained(plan.steps[0], model.stages, model.mixtures, BATCH, axis)
    units = step.forward.units
    ways = [(bounds(units, dense), bounds(units, mixed))] * 2
    chains = (step.forward, step.backward)
    chunks = [chain.cut(*way) for chain, way in zip(chains, ways, strict=True)]
    orders = [chain.in_turn(*way) for chain, way in zip(chains, ways, strict=True)]
    if turn is not None:
        orders = [turn(order) for order in orders]
    return plan.each_step(lambda _: step.woven(chunks, orders, late=late))


@pytest.mark.parametrize("axis", [TOKENS, SAMPLES])
@pytest.mark.parametrize(("dense", "mixed"), [(1, 1), (2, 2), (3, 2), (2, 4)])
@pytest.mark.parametrize("late", [False, True])
def test_everything_of_the_plain_plan_is_there(axis, dense, mixed, late):
    model, plan = plain()
    found = check(cut(model, plan, dense, mixed, axis=axis, late=late), finished=True)
    assert sorted(found.updates()[1].op.tensors) == sorted(plan.updates()[1].op.tensors)
    rows = [sum(task.op.nbytes for task in one.steps[0].of(Rows) if "counts" not in task.name) for one in (plan, found)]
    assert rows[0] == rows[1]
    work = [
        sum(task.op.flops for task in one.steps[0] if type(task.op).__name__ in ("Forward",)) for one in (plan, found)
    ]
    attends = found.steps[0].of(Attend)
    assert sum(task.op.flops * task.op.share for task in attends) == pytest.approx(
        sum(task.op.flops for task in attends) / min(dense, BATCH if axis == SAMPLES else 10)
    )
    assert work[1] < work[0]
    assert from_json(to_json(found)) == found


def test_a_chunk_waits_for_what_it_shares_units_with():
    model, plan = plain()
    step = cut(model, plan, 3, 2).steps[0]
    after = {task.name: set(task.after) for task in step}
    # Tokens 0-3, 3-6, 6-10 of attention; 0-5, 5-10 of mixtures.
    assert after["gate.blocks.1.moe.c0"] == {"attend.blocks.1.moe.c0", "attend.blocks.1.moe.c1"}
    assert after["gate.blocks.1.moe.c1"] == {"attend.blocks.1.moe.c1", "attend.blocks.1.moe.c2"}
    assert after["attend.blocks.3.moe.c0"] == {"restore.blocks.1.moe.c0"}
    assert after["attend.blocks.3.moe.c1"] == {
        "restore.blocks.1.moe.c0", "restore.blocks.1.moe.c1", "attend.blocks.3.moe.c0",
    }  # fmt: skip
    assert after["attend_backward.blocks.3.moe.c1"] == {
        "gate_backward.blocks.3.moe.c0", "gate_backward.blocks.3.moe.c1", "attend_backward.blocks.3.moe.c2",
    }  # fmt: skip
    assert after["restore_backward.blocks.1.moe.c1"] == {f"attend_backward.blocks.3.moe.c{chunk}" for chunk in (1, 2)}


def test_samples_do_not_wait_for_one_another():
    model, plan = plain()
    after = {task.name: set(task.after) for task in cut(model, plan, 2, 2, axis=SAMPLES).steps[0]}
    assert after["attend.blocks.1.moe.c1"] == set()
    assert after["attend_backward.blocks.1.moe.c0"] == {"gate_backward.blocks.1.moe.c0"}


def test_gradients_are_ready_with_the_last_chunk_of_the_order():
    model, plan = plain()
    for turn, last in ((None, ".c0"), (_other_chunks_first, ".c1")):
        step = check(cut(model, plan, 2, 2, axis=SAMPLES, turn=turn)).steps[0]
        ready = {
            task.name: task.op.ready for task in (*step.of(AttendBackward), *step.of(GateBackward)) if task.op.ready
        }
        assert all(name.endswith(last) for name in ready)
        assert ready[f"gate_backward.blocks.3.moe{last}"] == (
            "blocks.3.moe.gate.weight", "blocks.3.norm2.weight", "blocks.3.norm2.bias",
        )  # fmt: skip
        sends = {task.name: task.after for task in step.of(Collective) if task.op.tensors}
        assert sends["all_reduce.blocks.3.qkv.weight"] == (f"attend_backward.blocks.3.moe{last}",)


def _other_chunks_first(order):
    """Every task's chunks in the other order; they stand together, so this is valid where samples are cut."""
    groups = {}
    for layer, place, chunk in order:
        groups.setdefault((layer, place), []).append((layer, place, chunk))
    return [key for keys in groups.values() for key in reversed(keys)]


def test_an_order_that_cannot_be_is_refused_by_the_check():
    model, plan = plain()
    with pytest.raises(PlanError, match="does not stand before it"):
        check(cut(model, plan, 2, 2, turn=lambda order: order[::-1]))


def test_each_chunk_has_slots_for_its_own_tokens():
    model, plan = plain(capacity=1.0)
    step = cut(model, plan, 1, 3).steps[0]
    mixture = model.mixtures[0]
    found = [(task.op.begin, task.op.end) for task in step.of(Expert) if task.op.module == mixture.name]
    sizes = [mixture.capacity((last - first) * BATCH) for first, last in pairwise(bounds(10, 3))]
    assert [end - begin for begin, end in found] == sizes == [6, 6, 8]
    orders = [(task.op.begin, task.op.end) for task in step.of(Order) if task.op.module == mixture.name]
    assert orders == found


def test_a_causal_chunk_costs_what_it_looks_at():
    chunk = Attend("m", 100.0, 0.0, quadratic=0.5, units=10, first=5, last=10)
    assert chunk.share == pytest.approx(0.5 * 0.5 + 0.5 * 0.75)
    assert chunk.cut(0, 10).share == 1.0


def test_what_dear_left_of_the_step_before_stands_before_who_needs_it():
    from orch import registry
    from orch.stack import apply, arrange
    from orch.testing import mixture, small

    model, plan = plain()
    context = small.context(model.spread(4), mixture.cluster(4, all_reduce=(0.0, 1e-9)), batch=BATCH)
    members = [
        small.member(registry.technique("dear")),
        small.member(registry.technique("sp-moe"), degree_dense=2, degree=2),
    ]
    found, _ = apply(plan, arrange(members, registry.technique), context)
    step = found.steps[0]
    names = [task.name for task in step if task.stream == COMPUTE]
    updates = [task for task in step if task.lag and task.stream == COMPUTE]
    assert updates
    for update in updates:
        for parameter in update.op.tensors:
            for stage in model.stages:
                part = stage.part_of(parameter.rpartition(".")[0])
                if part is not None:
                    assert names.index(update.name) < names.index(f"{part}.{stage.mixture}.c0")


def test_what_cannot_be_walked_so_is_refused():
    model, plan = plain()
    with pytest.raises(OrchError, match="does not say which of it belongs together"):
        chained(plan.steps[0], (), model.mixtures, BATCH, TOKENS)


def test_measured_seconds_are_taken_over_and_renewed():
    model, _ = plain()
    layout = Layout.of(4, model.mixtures)
    before, after = (mixture_training(model.scaled_to(*times), layout, BATCH) for times in ((1.0, 2.0), (3.0, 5.0)))
    found = retimed(cut(model, before, 2, 2), after)
    want = cut(model, after, 2, 2)
    for one, other in zip(found.steps[0], want.steps[0], strict=True):
        assert one.name == other.name
        assert getattr(one.op, "seconds", None) == pytest.approx(getattr(other.op, "seconds", None))
    attends = sum(task.op.seconds * task.op.share for task in want.steps[0].of(Attend))
    assert 0.0 < attends < 3.0


def test_ranks_that_share_attention_are_refused():
    model, plan = plain()
    order = next(task for task in plan.steps[0].of(Order))
    odd = plan.steps[0].replace(
        {"forward.norm": [replace(order, name="join.blocks.0", op=replace(order.op, module="blocks.0"))]}
    )
    with pytest.raises(OrchError, match="inside layers and none that a chain has"):
        chained(odd, model.stages, model.mixtures, BATCH, TOKENS)
