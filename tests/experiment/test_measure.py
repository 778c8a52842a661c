"""What becomes of several rounds of measurements."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from orch import registry
from orch.experiment.measure import (
    Measurements,
    _crowd,
    _difference,
    _in_turns,
    _over_rounds,
    _running,
    _settled,
)
from orch.gang.inline import InlineGang
from orch.plan import Plan
from orch.runtime.observe import Observation, Pass, merge
from orch.runtime.warmup import OwnWork, Turn
from orch.stack import apply, arrange
from orch.testing import mixture, small
from orch.workload import Layout, data_parallel, mixture_training

PROFILE = small.profile([(4,), (8,)], [1.0, 2.0], [0.5, 0.5])
STAMPS = Pass({"l1": 0.0, "l2": 0.5}, {"l2.weight": 3.0, "l1.weight": 4.0}, 1.0, 4.0, 5.0)


def seen(step_s: float) -> Observation:
    return merge([Observation(PROFILE, 1.0, step_s, True, (STAMPS,))])


def test_the_round_before_training_counts_only_where_there_is_no_other() -> None:
    assert _settled([1]) == [1]
    assert _settled([1, 2, 3]) == [2, 3]


def test_rounds_are_as_long_as_they_were_on_average() -> None:
    together = _over_rounds([seen(5.0), seen(5.0), seen(20.0)])
    assert together.step_s == pytest.approx(10.0)
    total = sum(module.forward_s + module.backward_s for module in together.profile.modules)
    assert total + together.update_s == pytest.approx(10.0)
    assert together.update_s == pytest.approx(2.0)
    assert replace(together, passes=()) == replace(_over_rounds([seen(10.0)]), passes=())


def test_a_stack_is_predicted_for_the_speed_that_the_machine_had_in_its_blocks() -> None:
    subject: Any = SimpleNamespace(batch=1, precision="fp32", optimizer={})
    measurements = Measurements(SimpleNamespace(), InlineGang(), {"a": subject, "b": subject, "c": subject})
    measurements._speeds = [("a", 4.0), ("b", 6.0), ("b", 10.0), ("a", 20.0)]
    # Each block lies between two looks: a's between 4 and 6, and after 20; b's between 6 and 10, and 10 and 20.
    assert measurements._in_its_blocks("a", seen(5.0)).step_s == pytest.approx(12.5)
    assert measurements._in_its_blocks("b", seen(5.0)).step_s == pytest.approx(11.5)
    assert measurements._in_its_blocks("c", seen(5.0)).step_s == pytest.approx(5.0)  # it had none


def test_ranks_that_share_cores_wait_in_each_step_for_the_slowest_core_and_for_what_else_runs_there() -> None:
    bound = [("a", (0,), 1), ("a", (1,), 1)] * 2
    ran = [(1.0, 2.0), (3.0, 1.0), (1.0, 2.0), (1.0, 1.0)]

    def turns(first_s: float, second_s: float) -> list[tuple[Turn, Turn]]:
        # Between the steps lies a pause, which counts for nothing.
        return [(Turn(0.0, first_s, one), Turn(100.0, 100.0 + second_s, two)) for one, two in ran]

    assert _in_turns(bound, turns(2.0, 4.0)) == 4.0  # in both steps a core needs 4, and nothing else ran on it
    assert _in_turns(bound, turns(3.0, 5.0)) == pytest.approx(4.0 / 0.75)
    assert _in_turns(bound, turns(40.0, 60.0)) == pytest.approx(8.0)  # late ranks, rather than others' turns
    anywhere = [("a", (0, 1), 1)] * 3
    assert _in_turns(anywhere, [(Turn(0.0, 3.0, ran),) for ran in (1.0, 2.0, 3.0)]) == pytest.approx(3.0)


def test_the_runtimes_own_work_is_what_neighbouring_steps_differ_by() -> None:
    ranks = [((10.0, 20.0, 10.0), (11.0, 21.0, 30.0)), ((10.0, 10.0, 20.0), (13.0, 9.0, 23.0))]  # one with a hiccup
    assert _difference(ranks, 1, 0) == pytest.approx(2.0)  # 1 of one rank, 3 of the other
    assert _difference(ranks, 0, 1) == 0.0  # nothing takes less than nothing


def test_ranks_that_share_a_core_take_as_long_as_all_of_them_run() -> None:
    alone = Observation(PROFILE, 1.0, 9.0, True, (STAMPS,), ran_s=3.0)
    assert merge([alone, replace(alone, ran_s=4.0)], crowd=2.0).step_s == pytest.approx(8.0)
    assert merge([alone, alone], crowd=1.0).step_s == pytest.approx(9.0)
    assert _crowd([("a", (0, 1), 1)] * 4) == 2.0
    assert _crowd([("a", (0,), 1), ("a", (1,), 1)] * 2) == 2.0  # bound to them
    assert _crowd([("a", (0,), 1)] * 2) == 2.0  # of several, both on one
    assert _crowd([("a", (0, 1), 2), ("b", (0, 1), 2)]) == 1.0
    assert _crowd([("a", (0,), 0)] * 2) == 1.0  # devices of their own


@pytest.mark.parametrize(
    ("block_s", "expected"),
    [(1.0, [2, 4, 6]), (0.5, [4]), (0.01, [])],
)
def test_rounds_between_blocks_never_take_longer_than_what_is_trained(monkeypatch, block_s, expected) -> None:
    recipe: Any = SimpleNamespace(measure=SimpleNamespace(blocks=8))
    measurements = Measurements(recipe, InlineGang(), {})
    made: list[int] = []
    for block in range(8):
        monkeypatch.setattr(measurements, "round", lambda block=block: made.append(block))
        measurements.again(block, block * block_s)
    assert made == expected


def test_techniques_own_work_lasts_as_long_as_all_ranks_of_a_core_run() -> None:
    slow, quick = OwnWork({"encode": 3.0}, 10.0, 4.0), OwnWork({"encode": 5.0}, 30.0, 3.0)
    assert _running([slow, quick], crowd=2.0) == pytest.approx(2.0 * 4.0 / 20.0)  # of the slowest rank
    assert _running([slow, quick], crowd=1.0) == 1.0  # a core of its own: as the clock says


@pytest.mark.parametrize(("stack", "ranks"), [(("acp-sgd",), 1), (("int8-rows",), 2), (("acp-sgd", "naive-moe"), 2)])
def test_a_plan_in_which_some_ranks_meet_is_run_by_all_of_them(stack: tuple[str, ...], ranks: int) -> None:
    asked: list[Plan] = []

    def call(work: Any, subject: Any, seed: int, plan: Plan, steps: int) -> list[OwnWork]:
        asked.append(plan)
        return [OwnWork(dict.fromkeys((task.name for step in plan.steps for task in step), 1.0), 1.0, 1.0)]

    model = mixture.layers()
    members = [small.member(registry.technique(name)) for name in stack]
    plain = data_parallel(model, 2, 1) if ranks == 1 else mixture_training(model, Layout(2, 2), 1)
    where = mixture.cluster(2)
    plan = apply(plain, arrange(members, registry.technique), small.context(Layout(2, 2).local(model), where))[0]
    subject: Any = SimpleNamespace(batch=1, precision="fp32", optimizer={})
    recipe: Any = SimpleNamespace(seeds=[0], cluster=where)
    gang: Any = SimpleNamespace(size=2, call=call)
    measurements = Measurements(recipe, gang, {"a": subject})
    measurements.operations({"a": plan})
    assert [one.world_size for one in asked] == [ranks]
    assert set(asked[0].groups) == {"world", *(plan.groups if ranks > 1 else ())}


def test_techniques_own_work_is_that_between_the_blocks_and_as_slow_as_plain_steps_were_around_them() -> None:
    measurements = Measurements(SimpleNamespace(), InlineGang(), {})
    first = {"a": [("acp-sgd encode", 1.0, 50.0)]}
    between = {"a": [("acp-sgd encode", 1.0, 2.0), ("acp-sgd encode", 2.0, 4.0)], "b": [("acp-sgd encode", 3.0, 12.0)]}
    measurements._operations = [first]
    assert measurements._own_work({})["acp-sgd encode"].seconds(1.0) == pytest.approx(50.0)
    measurements._operations = [first, between]
    curve = measurements._own_work({"a": 2.0})["acp-sgd encode"]
    assert [curve.seconds(formula) for formula in (1.0, 3.0)] == pytest.approx([4.0, 12.0])
