"""Layers walked as a chain by ranks that share samples equal the model of one process, however they are cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from orch.plan import SAMPLES, TOKENS, AttendBackward, SumRows
from orch.runtime.chain import Facts
from orch.runtime.chain_shared import Sum
from tests.runtime.test_chain import Case, check_equal, expected, one_thread, train_all
from tests.runtime.worlds import run

__all__ = ["one_thread"]
CASES = [
    Case(dense=4, mixture=2, back=2, parts=2, tensor=2),
    Case(dense=2, mixture=4, every=1, layers=2, tensor=2, axis=SAMPLES, late=True),
    Case("gpt2", 2, 3, TOKENS, every=1, layers=2, tensor=2),
]


@pytest.mark.parametrize("world", [2, 4])
def test_attention_cut_by_heads_changes_nothing(world: int) -> None:
    """Blocks without a mixture stand between layers of the first case: its ranks meet twice on the way to each."""
    ranks = run(world, train_all, CASES)
    for number, case in enumerate(CASES):
        check_equal(case, [found[number] for found in ranks], expected(case, world // 2))


STACKS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("sp-moe", "wfbp"), {"sp-moe": {"degree_dense": 2, "degree": 4}}),
    (("mast", "dear"), {"mast": {"degree_dense": 3, "degree": 2, "trials": 30, "seed": 3}}),
]


@pytest.mark.parametrize(("stack", "knobs"), STACKS)
def test_both_techniques_plan_what_runs(stack: tuple[str, ...], knobs: dict[str, Any]) -> None:
    case = Case(stack=stack, knobs=knobs, tensor=2, nodes=2)
    step = case.plan(4).steps[0]
    assert {task.stream for task in step.of(SumRows)} == {"net.intra"}
    assert {task.op.piece for task in step.of(AttendBackward)} == {0, 1, 2}
    check_equal(case, [found[0] for found in run(4, train_all, [case])], expected(case, 2))


def test_a_sum_gives_any_range_out_of_what_came() -> None:
    facts = Facts(0, 6, lambda *_: None, {}, torch.float32)  # type: ignore[arg-type, return-value]
    total, whole = Sum(facts), torch.arange(12.0).view(6, 2)
    op = SumRows(SumRows.buffer_of("sum", 12, "fp32"), "out", "sum", 12, 0, 12)
    total.put(0, 6, whole)
    first, second = (total.parcel(op.cut(begin, end, name="sum.c")) for begin, end in ((0, 4), (4, 12)))
    assert torch.equal(first.sent, whole[:2])
    for parcel in (first, second):
        parcel.received.mul_(2)
    assert torch.equal(total.get(1, 5), 2 * whole[1:5])
    assert torch.equal(total.get(0, 2), 2 * whole[:2])
