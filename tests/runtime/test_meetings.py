"""Ranks that share samples compute what one process does: attention cut by heads, mixtures entered with a part of the tokens
or of the rows, for shapes of shared samples, shared experts and slices; and every rank did what the plan says.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch

from orch.errors import RunError
from orch.models.zoo.mixture import mixture_layers
from orch.runtime.base import Setup
from orch.runtime.engine import PlanEngine
from orch.runtime.optimizers import optimizer_factory
from tests.runtime.sharing import Case, Shared, check_equal, decided, expected, inputs, loss_of, train_all
from tests.runtime.worlds import run

TWO = {
    "attention alone": Case(2, schedule="plain"),
    "all rows on all, with capacity": Case(2, schedule="plain", capacity=1.25, balance=0.0),
    "a part of the tokens": Case(2),
    "products in parts": Case(2, stack=("coconet", "wfbp")),
    "a part of the tokens, and of the slots": Case(2, capacity=0.6),
    "a part of the rows": Case(2, schedule="s2", gathers=3),
    "a part of the slots": Case(2, schedule="s2", gathers=2, capacity=0.7, tokens=6),
    "experts on every rank": Case(2, spread=1, capacity=1.25),
    "rows of experts on every rank": Case(2, spread=1, schedule="s2", gathers=1),
}
FOUR = {
    "2 share samples, 2 experts": Case(2, 2, spread=2, gated=True),
    "2 share samples, 2 experts, rows": Case(2, 2, spread=2, schedule="s2", capacity=1.25, gathers=2),
    "2 share samples, 2 experts, tokens": Case(2, 2, spread=2, schedule="s2", stack=("dear",)),
    "2 share experts": Case(1, 2, spread=2),
    "2 share samples": Case(2, spread=4, kind="cosine", stack=("mg-wfbp",)),
    "2 share samples, rows": Case(2, spread=2, schedule="s2", order="einsum", top_k=1, routing="first", gathers=4),
    "4 share samples": Case(4, spread=2, routing="first", top_k=1),
    "4 share samples, rows": Case(4, spread=4, schedule="s2", capacity=0.9, gathers=1),
    "slots of all tokens": Case(2, spread=4, schedule="s2", kind="soft", top_k=1),
    "expert choice": Case(2, 2, spread=2, schedule="s2", kind="expert-choice"),
    "whole tokens, in chunks": Case(2, spread=2, schedule="plain", stack=("fsmoe",)),
    "whole tokens, chunks of one degree": Case(
        2, spread=4, schedule="plain", capacity=1.25, stack=("tutel",), balance=0.0
    ),
    "whichever is faster": Case(2, spread=4, schedule="auto"),
}


@lru_cache
def all_ranks(world: int) -> list[list[dict[str, Any]]]:
    """Train every case in one gang: making one takes longer than all the training."""
    cases = list({2: TWO, 4: FOUR}[world].values())
    return [list(ranks) for ranks in zip(*run(world, train_all, cases), strict=True)]


@pytest.mark.parametrize("name", TWO)
def test_two_ranks_that_share_a_sample_equal_one_process(name: str) -> None:
    check_equal(TWO[name], all_ranks(2)[list(TWO).index(name)])


@pytest.mark.parametrize("name", FOUR)
def test_four_ranks_that_share_samples_and_experts_equal_one_process(name: str) -> None:
    case, ranks = FOUR[name], all_ranks(4)[list(FOUR).index(name)]
    check_equal(decided(case, ranks), ranks)


def test_a_capacity_of_parts_may_drop_other_tokens_than_one_of_the_whole() -> None:
    parts, whole = expected(Case(2, capacity=0.6), 2), expected(Case(2, capacity=0.6, schedule="s2"), 2)
    assert not torch.allclose(parts["outputs"][0][0], whole["outputs"][0][0], atol=1e-3)
    parts, whole = expected(Case(2, balance=0.0), 2), expected(Case(2, balance=0.0, schedule="s2"), 2)
    torch.testing.assert_close(parts["outputs"], whole["outputs"])


def test_a_share_without_the_others_says_so() -> None:
    from orch.models.zoo.shards import share

    case = Case(2)
    model = Shared(case)
    share(model, 0, 2)
    with pytest.raises(RunError, match="a share of attention computes nothing without the others"):
        loss_of(model, *inputs(case, 0, 0))
    with pytest.raises(RunError, match="attention of this model cannot be shared out when it runs"):
        share(torch.nn.Linear(2, 2), 0, 2)


def test_a_plan_that_shares_samples_needs_a_model_that_does() -> None:
    case = Case(2, schedule="plain")
    setup = Setup(optimizer_factory({"sgd": {"lr": 0.1}}))
    groups = {name: Alone() for name in case.plan(2).groups}
    with pytest.raises(RunError, match=r"ranks meet at 'blocks\.0\.out', which the model does not share"):
        PlanEngine(case.plan(2), Shared(case), setup, groups)


def test_closing_leaves_the_layers_as_they_were() -> None:
    assert all(layer.around is None and layer.gate.parts == 1 for layer in mixture_layers(Shared(Case(2))).values())


class Alone:
    """A process group of two that nobody calls."""

    def size(self) -> int:
        return 2
