"""Watching a model: orders as they are, every parameter placed, times that add up."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from orch.runtime.observe import Observation, merge, observe
from orch.runtime.optimizers import optimizer_factory
from tests.runtime.models import MODELS, batch, build

SGD = {"sgd": {"lr": 0.1}}


def watch(name: str, steps: int = 3) -> Observation:
    def loss_of(module: nn.Module) -> torch.Tensor:
        inputs, targets = batch(0, 0)
        return nn.functional.cross_entropy(module(inputs), targets)

    return observe(build(name), loss_of, optimizer_factory(SGD), name=name, steps=steps, warmup=1)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_parameter_is_placed_and_times_are_there(name: str) -> None:
    seen = watch(name)
    profile = seen.profile
    model = build(name)
    assert [tensor.name for tensor in profile.tensors] == [key for key, _ in model.named_parameters()]
    assert profile.measured
    assert all(module.forward_s >= 0.0 and module.backward_s >= 0.0 for module in profile.modules)
    total = sum(module.forward_s + module.backward_s for module in profile.modules)
    assert total > 0.0
    assert seen.update_s > 0.0
    assert seen.step_s > 0.0
    assert seen.steady


def test_orders_are_observed() -> None:
    profile = watch("plain").profile
    assert [module.name for module in profile.modules] == ["0", "2", "4"]
    assert set(profile.ready_order[:2]) == {"4.weight", "4.bias"}
    assert set(profile.ready_order[-2:]) == {"0.weight", "0.bias"}


def test_a_tied_weight_is_ready_last_and_has_two_modules() -> None:
    profile = watch("tied").profile
    assert profile.tensor("embed.weight").modules == ("embed", "head")
    assert profile.ready_order[-1] == "embed.weight"


def test_parameters_without_a_gradient_are_stated() -> None:
    assert watch("unused").profile.never_ready == ("idle.weight", "idle.bias")
    assert watch("frozen").profile.never_ready == ("middle.weight", "middle.bias", "last.bias")


def test_a_child_that_is_read_but_not_called_belongs_to_its_caller() -> None:
    profile = watch("attention").profile
    assert profile.tensor("attend.out_proj.weight").modules == ("attend",)


def test_averages_over_ranks() -> None:
    profile = watch("plain").profile
    slow = replace(
        profile, modules=tuple(replace(m, forward_s=3 * m.forward_s, backward_s=m.backward_s) for m in profile.modules)
    )
    both = merge([profile, slow])
    for before, after in zip(profile.modules, both.modules, strict=True):
        assert after.forward_s == pytest.approx(2 * before.forward_s)
        assert after.backward_s == pytest.approx(before.backward_s)


def test_looking_leaves_no_hook_behind() -> None:
    model = build("plain")
    inputs, targets = batch(0, 0)
    observe(
        model,
        lambda module: nn.functional.cross_entropy(module(inputs), targets),
        optimizer_factory(SGD),
        steps=1,
        warmup=0,
    )
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
