"""Lina: slices of one size in holes, no gradient twice, and rows that FSMoE holds up less."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orch.plan import AllReduce, AllToAll, Expert, ExpertBackward, check
from orch.simulate import simulate
from techniques.moe import fsmoe, lina, pipemoe
from techniques.moe.lina import Config
from tests.techniques.moe.test_fsmoe import covered, setting


@settings(max_examples=20, deadline=None)
@given(st.floats(0.0, 0.5), st.floats(1e-5, 0.02), st.sampled_from(["1B", "64B", "1KiB", "1MiB"]), st.integers(1, 3))
def test_every_gradient_is_reduced_exactly_once(alpha: float, beta: float, size: str, layers: int) -> None:
    model, _, plain, context = setting(layers, all_reduce=(alpha, beta))
    plan = check(lina.rewrite(plain, context, Config(slice=size)), finished=True)
    covered(plan, model)
    sent = [sum(task.op.nbytes for task in one.steps[0].of(AllReduce)) for one in (plain, plan)]
    assert sent[0] == sent[1]


def test_slices_have_one_size_and_degrees_are_pipemoes() -> None:
    _, _, plain, context = setting(3, all_reduce=(0.001, 1e-4))
    plan = check(lina.rewrite(plain, context, Config(slice="256B")), finished=True)
    (step,) = plan.steps
    last = max(place for place, task in enumerate(step) if isinstance(task.op, AllToAll))
    early = [task.op.nbytes for place, task in enumerate(step) if isinstance(task.op, AllReduce) and place < last]
    assert len(early) > 3
    assert max(early) == 256
    other = pipemoe.rewrite(plain, context, pipemoe.Config()).steps[0]
    for kind in (Expert, ExpertBackward):
        assert [task.name for task in step.of(kind)] == [task.name for task in other.of(kind)]


@pytest.mark.parametrize("size", ["64B", "1KiB", "1MiB"])
def test_holes_filled_by_slices_are_faster_than_none_and_by_fsmoe_faster_still(size: str) -> None:
    _, where, plain, context = setting(3)
    times = {
        name: simulate(module.rewrite(plain, context, config), where).step_time_s
        for name, module, config in (
            ("lina", lina, Config(slice=size)),
            ("fsmoe", fsmoe, fsmoe.Config(smallest="16B")),
            ("pipemoe", pipemoe, pipemoe.Config()),
        )
    }
    assert times["fsmoe"] <= times["lina"] * (1 + 1e-9)
    assert times["lina"] < times["pipemoe"]
