"""Watching a model: orders as they are, every parameter placed, times that add up."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import orch.runtime.observe as observing
from orch.models.profile import Module, Profile, Tensor
from orch.runtime.observe import Observation, Pass, merge, observe
from orch.runtime.optimizers import optimizer_factory
from tests.runtime.models import MODELS, batch, build

SGD = {"sgd": {"lr": 0.1}}


def watch(name: str, steps: int = 3) -> Observation:
    def loss_of(module: nn.Module) -> torch.Tensor:
        inputs, targets = batch(0, 0)
        return nn.functional.cross_entropy(module(inputs), targets)

    return observe(build(name), loss_of, optimizer_factory(SGD), name=name, steps=steps, warmup=1, paced=steps)


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


def test_a_step_is_as_long_as_the_steps_in_a_row_were() -> None:
    seen = watch("plain")
    total = sum(module.forward_s + module.backward_s for module in seen.profile.modules)
    assert total + seen.update_s == pytest.approx(seen.step_s)


def test_a_step_is_as_long_as_one_that_has_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    now, rested = [0.0], [False]
    monkeypatch.setattr(observing, "thread_time", lambda: now[0])
    monkeypatch.setattr(observing, "perf_counter", lambda: 2.0 * now[0])

    def pause() -> None:
        rested[0] = True
        now[0] += 100.0

    def loss_of(module: nn.Module) -> torch.Tensor:
        now[0] += 5.0 if rested[0] else 3.0  # with cold caches
        rested[0] = False
        inputs, targets = batch(0, 0)
        return nn.functional.cross_entropy(module(inputs), targets)

    seen = observe(build("plain"), loss_of, optimizer_factory(SGD), steps=2, paced=4, pause=pause)
    assert (seen.ran_s, seen.step_s) == (5.0, 10.0)


def test_a_gang_takes_as_long_as_its_slowest_rank() -> None:
    seen = watch("plain")
    both = merge([seen, replace(seen, step_s=3 * seen.step_s), seen])
    for before, after in zip(seen.profile.modules, both.profile.modules, strict=True):
        assert after.forward_s == pytest.approx(3 * before.forward_s)
        assert after.backward_s == pytest.approx(3 * before.backward_s)
    assert both.update_s == pytest.approx(3 * seen.update_s)


def test_stamps_of_all_ranks_share_a_step_out() -> None:
    passes = [Pass({"0": 0.0}, {"0.weight": 4.0}, backward, 4.0, 5.0) for backward in (1.0, 3.0, 2.0)]
    seen = watch("plain")
    profile = Profile("one", (Module("0", 0.0, 0.0),), (Tensor("0.weight", (1,), ("0",)),), ("0.weight",), "made up")
    both = merge([replace(seen, profile=profile, passes=(one,), step_s=10.0) for one in passes])
    assert (both.profile.modules[0].forward_s, both.profile.modules[0].backward_s) == pytest.approx((4.0, 4.0))
    assert both.update_s == pytest.approx(2.0)


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
