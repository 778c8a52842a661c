"""CoCoNet: parts of a product and their sums side by side, as many as end soonest, and the work of before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orch.models.catalogue import model
from orch.plan import Forward, Plan, Project, Step, SumRows, check
from orch.simulate import simulate
from orch.testing import mixture, small
from orch.testing.contract import TechniqueContract
from orch.workload import Layout, mixture_training, retimed
from techniques.moe import coconet


def setting(beta: float = 1e-9, launch_s: float = 0.0, tensor: int = 4):
    chosen = model("moe-layers")
    profile = chosen.profile(chosen.knobs(num_layers=2, attention=True, hidden=512, inner=256, seq_len=64, experts=4))
    layout = Layout(4, 4, 1, tensor)
    where = mixture.cluster(
        4, alpha_s=1e-5, beta_s_per_byte=1e-9, rate_flops=1e11, launch_s=launch_s, all_reduce=(1e-6, beta)
    )
    return where, mixture_training(profile, layout, 1), small.context(layout.local(profile), where)


def parts(plan: Plan) -> list[tuple[int, int]]:
    return [(task.op.begin, task.op.end) for task in plan.steps[0].of(Project) if task.op.module == "layers.0.out"]


def test_each_part_is_added_up_while_the_next_is_computed() -> None:
    where, plain, context = setting()
    plan = check(coconet.rewrite(plain, context, coconet.Config(parts=4)), finished=True)
    assert parts(plan) == [(0, 16), (16, 32), (32, 48), (48, 64)]
    after = {task.name: task.after for task in plan.steps[0]}
    assert after["sum.layers.0.out.c2"] == ("forward.layers.0.out.c2",)
    assert after["join.layers.0.out"] == ("sum.layers.0.out.c3",)
    assert simulate(plan, where).step_time_s < simulate(plain, where).step_time_s
    # As much is computed, and as much is sent.
    for kind, size in ((SumRows, "nbytes"), (Forward, "flops")):
        before, behind = (sum(getattr(task.op, size) for task in one.steps[0].of(kind)) for one in (plain, plan))
        made = sum(
            task.op.flops * (task.op.end - task.op.begin) / task.op.positions for task in plan.steps[0].of(Project)
        )
        assert before == pytest.approx(behind + (made if kind is Forward else 0.0))


def test_parts_take_what_the_product_is_measured_to_take() -> None:
    where, plain, context = setting()
    plan = coconet.rewrite(plain, context, coconet.Config(parts=4))
    timed = replace(
        plain,
        steps=tuple(
            Step(
                tuple(
                    replace(task, op=replace(task.op, seconds=4.0)) if isinstance(task.op, Forward) else task
                    for task in step
                )
            )
            for step in plain.steps
        ),
    )
    ops = {task.name: task.op for task in retimed(plan, timed).steps[0]}
    span = where.span(range(4))
    assert [ops[f"forward.layers.0.out.c{number}"].cost_s(where, span) for number in range(4)] == [1.0] * 4
    assert ops["begin.layers.0.out"].cost_s(where, span) == 0.0


def test_as_many_parts_as_end_soonest() -> None:
    where, plain, context = setting(launch_s=1e-6)
    chosen = simulate(coconet.rewrite(plain, context, coconet.Config()), where).step_time_s
    others = [
        simulate(coconet.rewrite(plain, context, one), where).step_time_s for one in coconet.settings(coconet.Config())
    ]
    assert chosen <= min(others) * (1 + 1e-9)
    where, plain, context = setting(launch_s=1.0)
    assert not parts(coconet.rewrite(plain, context, coconet.Config()))


def test_whole_samples_are_left_alone() -> None:
    _, plain, context = setting(tensor=1)
    assert coconet.rewrite(plain, context, coconet.Config(parts=4)) is plain


class TestCoconet(TechniqueContract):
    technique = coconet.technique
    worlds = (1, 2)
