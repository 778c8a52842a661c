"""SM-MoE: the order of launches, and choices that no other is faster than."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from orch import registry
from orch.cluster import Sharing
from orch.plan import AllToAll, Expert, ExpertBackward, check
from orch.simulate import simulate
from orch.stack import apply, arrange
from orch.testing import mixture, small
from orch.workload import Layout, mixture_training
from techniques.moe import pipemoe, sm_moe
from techniques.moe.sm_moe import Config


def setting(*, units: int = 68, held: int = 8, rate: float = 1e4, launch: float = 0.0, layers: int = 2):
    model = mixture.layers(layers, tokens=32, capacity=1.0)
    where = mixture.cluster(4, alpha_s=0.1, beta_s_per_byte=1e-3, rate_flops=rate, launch_s=launch)
    if units:
        where = replace(where, sharing=Sharing(source="an example", units=units, held=held))
    return mixture_training(model, Layout(4, 4), 2), where, small.context(model, where)


def names(plan, *parts: str) -> list[str]:
    return [task.name for task in plan.steps[0] if task.name.split(".")[0] in parts]


def test_what_is_launched_first_stands_first() -> None:
    plain, _, context = setting(layers=1)
    delayed, oblivious = (
        check(
            sm_moe.rewrite(plain, context, Config(degree=2, degree_backward=1, pieces=1, launch=launch)), finished=True
        )
        for launch in ("delayed", "oblivious")
    )
    order = ["dispatch.c0", "dispatch.c1", "expert.c0", "combine.c0", "expert.c1", "combine.c1"]
    found = [name.replace(".0.moe", "") for name in names(delayed, "dispatch", "expert", "combine")]
    assert found == order
    order = ["dispatch.c0", "expert.c0", "dispatch.c1", "expert.c1", "combine.c0", "combine.c1"]
    found = [name.replace(".0.moe", "") for name in names(oblivious, "dispatch", "expert", "combine")]
    assert found == order
    for stream in ("compute", "net.inter"):
        assert [t.name for t in delayed.steps[0].stream(stream)] == [t.name for t in oblivious.steps[0].stream(stream)]


def test_rows_that_are_packed_are_unpacked_where_they_do_not_hold_up_experts() -> None:
    model = mixture.layers(1, tokens=32, capacity=1.0)
    where = mixture.cluster(4, alpha_s=0.1, beta_s_per_byte=1e-3, rate_flops=1e4)
    members = [small.member(sm_moe.technique, degree=2), small.member(registry.technique("int8-rows"))]
    plan, _ = apply(
        mixture_training(model, Layout(4, 4), 2), arrange(members, registry.technique), small.context(model, where)
    )
    compute = [t.name.replace(".0.moe", "") for t in plan.steps[0].stream("compute") if t.name.endswith((".c0", ".c1"))]
    forward = compute[: compute.index("unpack.combine.c1") + 1]
    assert forward == [
        "pack.dispatch.c0", "pack.dispatch.c1",
        "unpack.dispatch.c0", "expert.c0", "pack.combine.c0", "unpack.dispatch.c1", "expert.c1", "pack.combine.c1",
        "unpack.combine.c0", "unpack.combine.c1",
    ]  # fmt: skip


@pytest.mark.parametrize("launch", ["delayed", "oblivious"])
@pytest.mark.parametrize(("rate", "start_up"), [(1e4, 0.0), (3e4, 0.01), (1e4, 0.5)])
def test_no_other_choice_is_faster(launch: str, rate: float, start_up: float) -> None:
    plain, where, context = setting(rate=rate, launch=start_up, layers=1)
    chosen = simulate(sm_moe.rewrite(plain, context, Config(most=4, launch=launch)), where).step_time_s
    for degree, pieces, channels in product((1, 2, 3, 4), (1, 4), (8, 2)):
        config = Config(degree=degree, degree_backward=degree, pieces=pieces, channels=channels, launch=launch)
        other = simulate(sm_moe.rewrite(plain, context, config), where).step_time_s
        assert chosen <= other * (1 + 1e-6)


def test_pieces_pay_where_exchanges_wait_and_not_where_they_are_resident_first() -> None:
    plain, _, context = setting(rate=1e4, launch=1e-3)
    pieces = {}
    for launch in ("delayed", "oblivious"):
        (step,) = sm_moe.rewrite(plain, context, Config(launch=launch)).steps
        pieces[launch] = max(task.op.pieces for kind in (Expert, ExpertBackward) for task in step.of(kind))
    assert pieces["delayed"] == 1 < pieces["oblivious"]


def test_the_order_regains_what_contention_takes() -> None:
    plain, where, context = setting()
    free = replace(where, sharing=None)
    ideal = simulate(pipemoe.rewrite(plain, context, pipemoe.Config()), free).step_time_s
    times = {
        launch: simulate(sm_moe.rewrite(plain, context, Config(launch=launch, pieces=1)), where).step_time_s
        for launch in ("delayed", "oblivious")
    }
    assert ideal < times["delayed"] < 0.9 * times["oblivious"]
    assert times["delayed"] <= simulate(pipemoe.rewrite(plain, context, pipemoe.Config()), where).step_time_s


def test_where_nothing_competes_it_is_as_fast_as_pipemoe_and_holds_nothing() -> None:
    plain, where, context = setting(units=0)
    plan = sm_moe.rewrite(plain, context, Config())
    other = pipemoe.rewrite(plain, context, pipemoe.Config())
    assert simulate(plan, where).step_time_s == pytest.approx(simulate(other, where).step_time_s)
    assert {task.op.channels for task in plan.steps[0].of(AllToAll)} == {0}
    assert {task.op.pieces for task in plan.steps[0].of(Expert)} == {1}


def test_one_rank_with_all_experts_is_left_whole() -> None:
    plain = mixture_training(mixture.layers(), Layout(1), 1)
    assert sm_moe.rewrite(plain, small.context(mixture.layers(), mixture.cluster(1)), Config()) is plain
