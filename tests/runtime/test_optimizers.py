"""Optimisers from recipes: names, options, learning-rate schedules, and a state that does not know how a plan cuts."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from orch.errors import OrchError
from orch.recipe import schema
from orch.runtime.optimizers import KNOWN, Optimizers, Schedule, optimizer_factory

ADAM = {"adamw": {"lr": 0.1, "weight_decay": 0.01}}


def parameters() -> dict[str, nn.Parameter]:
    torch.manual_seed(0)
    return {name: nn.Parameter(torch.randn(3)) for name in ("a", "b", "c")}


def step(optimizers: Optimizers, cuts: list[tuple[str, ...]], found: dict[str, nn.Parameter], number: int) -> None:
    for name, parameter in found.items():
        parameter.grad = torch.full((3,), float(number + len(name)))
    for cut in cuts:
        optimizers.step(cut, number)


@pytest.mark.parametrize(
    ("name", "kind"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)]
)
def test_a_recipe_name_makes_torchs_optimiser(name: str, kind: type[Any]) -> None:
    made = optimizer_factory({name: {"lr": 0.25}})([nn.Parameter(torch.zeros(1))])
    assert type(made) is kind
    assert made.param_groups[0]["lr"] == 0.25


def test_those_are_the_optimisers_that_a_recipe_may_name() -> None:
    assert list(KNOWN) == list(schema.Optimizer.model_fields)


def test_a_factory_travels_to_workers() -> None:
    made = pickle.loads(pickle.dumps(ADAM))
    assert optimizer_factory(made)([nn.Parameter(torch.zeros(1))]).param_groups[0]["weight_decay"] == 0.01


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"sdg": {"lr": 1}}, r"optimiser 'sdg' is not known; did you mean sgd\?"),
        ({"sgd": {"lr": 1}, "adam": {}}, "one optimiser is wanted, found 2: sgd, adam"),
        ({}, "one optimiser is wanted, found 0: none"),
        ({"sgd": {"lr": 0.1, "momentun": 0.9}}, "optimiser 'sgd' cannot be made"),
        ({"sgd": {"lr": -1.0}}, "optimiser 'sgd' cannot be made"),
    ],
)
def test_bad_optimisers_are_told(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(OrchError, match=message):
        optimizer_factory(spec)([nn.Parameter(torch.zeros(1))])


def test_how_a_plan_cuts_updates_makes_no_difference() -> None:
    whole, parts = parameters(), parameters()
    one, two = [("a", "b", "c")], [("c",), ("a", "b")]
    first = Optimizers(one, whole, optimizer_factory(ADAM), Schedule("cosine", warmup=2, steps=6))
    second = Optimizers(two, parts, optimizer_factory(ADAM), Schedule("cosine", warmup=2, steps=6))
    for number in range(6):
        step(first, one, whole, number)
        step(second, two, parts, number)
    for name in whole:
        assert torch.equal(whole[name], parts[name])


def test_state_moves_between_differently_cut_plans() -> None:
    whole, parts = parameters(), parameters()
    one, two = [("a", "b", "c")], [("c",), ("a", "b")]
    first = Optimizers(one, whole, optimizer_factory(ADAM), Schedule())
    for number in range(3):
        step(first, one, whole, number)
    second = Optimizers(two, parts, optimizer_factory(ADAM), Schedule())
    for name, parameter in parts.items():
        parameter.data.copy_(whole[name].detach())
    second.load_state_dict(first.state_dict())
    step(first, one, whole, 3)
    step(second, two, parts, 3)
    for name in whole:
        assert torch.equal(whole[name], parts[name])


def test_a_parameter_has_one_owner() -> None:
    with pytest.raises(OrchError, match="parameter 'b' is updated by two differently cut updates"):
        Optimizers([("a", "b"), ("b", "c")], parameters(), optimizer_factory(ADAM), Schedule())


def test_schedules() -> None:
    warm = Schedule("constant", warmup=4)
    assert [warm.factor(number) for number in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    cosine = Schedule("cosine", warmup=0, steps=4)
    expected = [0.5 * (1 + math.cos(math.pi * number / 4)) for number in range(4)] + [0.0]
    assert [cosine.factor(number) for number in (0, 1, 2, 3, 9)] == pytest.approx(expected)
