"""The plan engine against plain S-SGD and against torch's DDP, in real processes of odd worlds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from orch.plan import Plan, check
from orch.runtime.base import Setup
from orch.runtime.conformance import differences
from orch.runtime.engine import PlanEngine
from orch.runtime.observe import observe
from orch.runtime.optimizers import optimizer_factory
from orch.technique import fuse_each_wave
from orch.workload import data_parallel
from tests.runtime.models import MODELS, batch, build
from tests.runtime.worlds import World, run

SGD = {"sgd": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}}
STEPS = 4


def loss_of(model: Any, rank: int, step: int) -> Tensor:
    inputs, targets = batch(rank, step)
    return nn.functional.cross_entropy(model(inputs), targets)


def plan_of(name: str, world: int, buckets: int, dtype: str = "fp32") -> Plan:
    """The plain plan of a model, fused in buckets of so many gradients (0: one bucket)."""
    model = build(name)
    seen = observe(model, lambda forward: loss_of(forward, 0, 0), optimizer_factory(SGD), steps=1, warmup=0)
    plan = data_parallel(seen.profile, world, 4, gradient_dtype=dtype)

    def ends(plan: Plan, step: int, sends: Any) -> list[int]:
        size = buckets or len(sends)
        return [*range(size, len(sends), size), len(sends)]

    return check(fuse_each_wave(plan, ends), finished=True)


def reference(name: str, world: int, steps: int = STEPS) -> dict[str, Tensor]:
    """Plain S-SGD in one process: the mean of all ranks' gradients, one optimiser step."""
    models = [build(name) for _ in range(world)]
    optimizers = [optimizer_factory(SGD)([p for p in model.parameters() if p.requires_grad]) for model in models]
    for step in range(steps):
        for rank, model in enumerate(models):
            model.zero_grad(set_to_none=True)
            loss_of(model, rank, step).backward()
        for parameters in zip(*(model.parameters() for model in models), strict=True):
            if parameters[0].grad is not None:
                mean = torch.stack([p.grad / world for p in parameters]).sum(0)
                for parameter in parameters:
                    parameter.grad = mean.clone()
        for optimizer in optimizers:
            optimizer.step()
    return {key: value.detach() for key, value in models[0].named_parameters()}


def train(world: World, name: str, plan: Plan, steps: int = STEPS) -> dict[str, Any]:
    model = build(name)
    engine = PlanEngine(plan, model, Setup(optimizer_factory(SGD), world.rank), world.groups())
    for step in range(steps):
        engine.train_step(lambda forward, step=step: loss_of(forward, world.rank, step))
    engine.flush()
    found = {key: value.detach().numpy() for key, value in model.named_parameters()}
    return {"parameters": found, "differences": differences(engine.record, world.rank, modules=engine.modules),
            "bytes": engine.record.bytes_per_step()}  # fmt: skip


def tensors(result: dict[str, Any]) -> dict[str, Tensor]:
    return {key: torch.from_numpy(value) for key, value in result["parameters"].items()}


@pytest.mark.parametrize("buckets", [1, 2, 0], ids=["wfbp", "pairs", "single"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_parameters_equal_plain_sgd(size: int, buckets: int) -> None:
    plan = plan_of("plain", size, buckets)
    results = run(size, train, "plain", plan)
    expected = reference("plain", size)
    for result in results:
        assert result["differences"] == []
        torch.testing.assert_close(tensors(result), expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(tensors(result), tensors(results[0]), rtol=0, atol=0)


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"plain"}))
def test_odd_models_equal_plain_sgd(name: str) -> None:
    plan = plan_of(name, 2, 2, "fp64" if name == "mixed" else "fp32")
    results = run(2, train, name, plan)
    for result in results:
        assert result["differences"] == []
        torch.testing.assert_close(tensors(result), reference(name, 2), rtol=1e-5, atol=1e-6)


def test_payload_is_what_the_plan_says() -> None:
    plan = plan_of("plain", 2, 2)
    numel = sum(p.numel() for p in build("plain").parameters())
    assert [result["bytes"] for result in run(2, train, "plain", plan)] == [4 * numel] * 2
    half = plan_of("plain", 2, 2, "bf16")
    assert [result["bytes"] for result in run(2, train, "plain", half)] == [2 * numel] * 2
