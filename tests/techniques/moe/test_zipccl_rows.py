"""Rows without loss in a plan: sizes are told first, expected bytes say what they rest on, and what is learned stays the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from orch import registry
from orch.errors import OrchError
from orch.plan import COUNTS, SIZES, AllToAll, Plan, RecodeRows, RowSizes, Task, check, from_json, to_json
from orch.stack import apply, arrange
from orch.testing import mixture, small
from orch.testing.contract import TechniqueContract
from orch.workload import Layout, mixture_training
from techniques.moe import zipccl_rows
from tests.runtime.test_mixture import Case, train_all
from tests.runtime.worlds import run

MODEL = mixture.layers(tokens=8, hidden=16, top_k=2)


def plan_of(*names: str, precision: str = "fp32", nodes: int = 1, **knobs: Any) -> Plan:
    where = mixture.cluster(4, alpha_s=1e-3, beta_s_per_byte=1e-6, nodes=nodes)
    plain = mixture_training(MODEL, Layout(4, 4), 1, precision=precision)
    members = [small.member(registry.technique(name), **knobs.get(name.replace("-", "_"), {})) for name in names]
    return apply(plain, arrange(members, registry.technique), small.context(MODEL, where))[0]


def exchanges(plan: Plan) -> list[Task]:
    return [task for task in plan.steps[0].of(AllToAll) if task.op.part != COUNTS]  # type: ignore[attr-defined]


def test_the_sizes_of_parts_are_told_before_their_bytes_and_the_plan_says_what_it_counts_on() -> None:
    plain = mixture_training(MODEL, Layout(4, 4), 1)
    context = small.context(MODEL, mixture.cluster(4))
    plan = check(zipccl_rows.rewrite(plain, context, zipccl_rows.Config()), finished=True)
    names = {task.name: task for task in plan.steps[0]}
    told = names["sizes.dispatch.0.moe"]
    assert (told.after, told.stream, told.group) == (("pack.dispatch.0.moe",), "net.sizes", SIZES)
    assert told.op.nbytes == 8 * 4
    sent = names["dispatch.0.moe"]
    assert sent.after == ("pack.dispatch.0.moe", "sizes.dispatch.0.moe", "counts.0.moe")
    assert sent.op.buffer.nbytes == 8 * 2 * 16 * 4  # type: ignore[attr-defined]
    assert sent.op.nbytes == 8 * 2 * 16 * 4 * 850 // 1000
    assert sent.op.rests_on == "rows packed to 85 % of their bytes (derived for normal numbers)"  # type: ignore[attr-defined]
    assert plan.groups[SIZES].blocks == plan.groups["experts"].blocks
    assert from_json(to_json(plan)) == plan


def test_of_bf16_less_travels_and_gradients_may_be_left_as_they_are() -> None:
    plan = plan_of("zipccl-rows", "naive-moe", precision="bf16", zipccl_rows={"gradients": False})
    assert [task.op.travels for task in exchanges(plan)] == [700, 700, 1000, 1000]  # type: ignore[attr-defined]
    assert len(plan.steps[0].of(RecodeRows)) == 4


def test_one_rank_alone_packs_nothing() -> None:
    alone = mixture_training(MODEL, Layout(1), 1)
    assert zipccl_rows.rewrite(alone, small.context(MODEL, mixture.cluster(1)), zipccl_rows.Config()) is alone


@pytest.mark.parametrize("schedule", ["pipemoe", "schemoe", "tutel", "fsmoe", "sm-moe"])
def test_every_chunk_has_sizes_of_its_own_and_waits_for_no_others(schedule: str) -> None:
    plan = plan_of("zipccl-rows", schedule, **{schedule.replace("-", "_"): {"degree": 2}})
    tasks = {task.name: task for task in plan.steps[0]}
    for number in (0, 1):
        assert f"sizes.dispatch.0.moe.c{number}" in tasks[f"dispatch.0.moe.c{number}"].after
    assert {task.op.nbytes for task in plan.steps[0].of(RowSizes)} == {32}
    assert sum(task.op.buffer.nbytes for task in exchanges(plan) if task.op.part == "dispatch") == 1024  # type: ignore[attr-defined]


def test_halves_of_an_exchange_wait_for_the_same_sizes() -> None:
    plan = plan_of("zipccl-rows", "pipe-a2a", "naive-moe", nodes=2)
    out = [task for task in exchanges(plan) if task.op.part == "dispatch"]  # type: ignore[attr-defined]
    assert len(out) == 2
    assert all("sizes.dispatch.0.moe" in task.after for task in out)


@pytest.mark.parametrize(("other", "why"), [("two-level-a2a", "relays"), ("parm", "come back as numbers")])
def test_what_it_cannot_be_stacked_with_is_said(other: str, why: str) -> None:
    with pytest.raises(OrchError, match=why):
        plan_of("zipccl-rows", other)


def test_three_ranks_learn_bit_for_bit_what_they_learn_without_it() -> None:
    alike = {"pipemoe": {"degree": 2, "degree_backward": 2}}
    cases = [
        Case(experts=3, tokens=11, stack=(*codec, "pipemoe", "wfbp"), knobs=alike) for codec in ((), ("zipccl-rows",))
    ]
    for plain, packed in run(3, train_all, cases):
        assert packed["differences"] == plain["differences"] == []
        for name, value in plain["parameters"].items():
            assert torch.equal(packed["parameters"][name], value), name
        assert all(torch.equal(a, b) for a, b in zip(packed["outputs"], plain["outputs"], strict=True))


class TestZipcclRows(TechniqueContract):
    technique = zipccl_rows.technique
    worlds = (1, 2)
