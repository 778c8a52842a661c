"""The plan engine against plain S-SGD and against torch's DDP, in real processes of odd worlds."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from orch.errors import OrchError, RunError
from orch.plan import Plan, check
from orch.runtime.base import Setup
from orch.runtime.conformance import differences
from orch.runtime.engine import PlanEngine
from orch.runtime.observe import observe
from orch.runtime.optimizers import Schedule, optimizer_factory
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


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("missing", r"the gradient of last\.(weight|bias).* never came"),
        ("unknown", r"a gradient arrived for 'idle\.(weight|bias)', which the plan does not know"),
        ("twice", r"the gradient of 'last\.(weight|bias)' arrived twice"),
        ("outside", r"arrived outside a step"),
        ("stale", r"last update is still to be finished; call flush\(\)"),
        ("begun", r"step 1 was begun twice"),
        ("unfinished", r"flush within step 1"),
    ],
)
def test_faults_are_told(fault: str, message: str) -> None:
    with pytest.raises(RunError, match=message):
        break_a_step(fault)


def break_a_step(fault: str) -> None:
    """Train a model for one good step in this process, then do something wrong."""
    model = build("unused")
    engine = PlanEngine(plan_of("unused", 1, 1), model, Setup(optimizer_factory(SGD)), {})
    engine.train_step(lambda module: loss_of(module, 0, 0))
    if fault == "outside":
        loss_of(lambda inputs: model.last(model.first(inputs).relu()), 0, 1)
        engine._active = False
        model.first.weight.sum().backward()
        return
    if fault == "stale":
        engine._pending = True
        with torch.no_grad():
            model(torch.zeros(1, 6))
    engine.begin_step()
    if fault == "begun":
        engine.begin_step()
    elif fault == "unfinished":
        engine._pending = True
        engine.flush()
    elif fault == "missing":
        engine.backward(model.first(torch.zeros(2, 6)).sum())
        engine.finish_step()
    elif fault == "unknown":
        engine.backward(model(torch.ones(2, 6)).sum() + model.idle(torch.ones(2, 4)).sum())
    elif fault == "twice":
        engine.backward(model(torch.ones(2, 6)).sum())
        engine.backward(model(torch.ones(2, 6)).sum())


def test_streams_that_only_simulation_knows_are_refused() -> None:
    plan = plan_of("plain", 1, 1)
    tasks = [replace(task, stream="host") if task.name == "update" else task for task in plan.steps[0]]
    hosted = Plan.of("hosted", 1, tasks)
    with pytest.raises(RunError, match="'update' is on stream 'host', which this engine does not drive"):
        PlanEngine(hosted, build("plain"), Setup(optimizer_factory(SGD)), {})


def test_a_plan_of_another_model_is_refused() -> None:
    with pytest.raises(OrchError, match=r"parameter '(mix|embed)\.\w+', which the model does not have"):
        PlanEngine(plan_of("tied", 1, 1), build("plain"), Setup(optimizer_factory(SGD)), {})


def test_a_group_nobody_made_is_refused() -> None:
    with pytest.raises(RunError, match="group 'world', for which there is no process group"):
        PlanEngine(plan_of("plain", 2, 1), build("plain"), Setup(optimizer_factory(SGD)), {})


def resume(world: World, plan: Plan, optimizer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Train six steps; and three, a checkpoint, and three more in a new engine."""

    def engine() -> PlanEngine:
        setup = Setup(optimizer_factory(optimizer), world.rank, schedule=Schedule("cosine", warmup=2, steps=8))
        return PlanEngine(plan, build("plain"), setup, groups)

    def steps(engine: PlanEngine, first: int, end: int) -> dict[str, Any]:
        for step in range(first, end):
            engine.train_step(lambda module, step=step: loss_of(module, world.rank, step))
        engine.flush()
        return {key: value.detach().clone().numpy() for key, value in engine.model.named_parameters()}

    groups = world.groups()
    whole = steps(engine(), 0, 6)
    before, after = engine(), engine()
    steps(before, 0, 3)
    saved = io.BytesIO()
    torch.save(before.state_dict(), saved)
    before.close()
    saved.seek(0)
    after.load_state_dict(torch.load(saved, weights_only=True))
    return {"whole": whole, "resumed": steps(after, 3, 6)}


@pytest.mark.parametrize("optimizer", [SGD, {"adamw": {"lr": 0.01}}], ids=["sgd", "adamw"])
@pytest.mark.parametrize("stack", ["bucketed", "dear", "acp-sgd", "top-k", "power-sgd"])
def test_resuming_equals_going_on(stack: str, optimizer: dict[str, Any]) -> None:
    from tests.runtime.test_network import plan_of as stack_of

    for result in run(2, resume, stack_of("plain", 2, (stack, {})), optimizer):
        for key, value in result["whole"].items():
            assert (result["resumed"][key] == value).all(), key


def test_evaluating_between_steps_costs_no_collective() -> None:
    engine = PlanEngine(plan_of("plain", 1, 1), build("plain"), Setup(optimizer_factory(SGD)), {})
    engine.train_step(lambda module: loss_of(module, 0, 0))
    with torch.no_grad():
        engine.model(torch.zeros(1, 6))
    assert len(engine.record.steps) == 1


def test_closing_takes_the_hooks_off() -> None:
    model = build("plain")
    engine = PlanEngine(plan_of("plain", 1, 1), model, Setup(optimizer_factory(SGD)), {})
    engine.close()
    loss_of(model, 0, 0).backward()
    assert engine.record.steps.maxlen is not None
    assert len(engine.record.steps) == 0


def test_a_plain_loop_begins_its_steps_by_itself() -> None:
    model = build("plain")
    engine = PlanEngine(plan_of("plain", 1, 1), model, Setup(optimizer_factory(SGD)), {})
    for step in range(STEPS):
        loss_of(model, 0, step).backward()
        engine.finish_step()
    torch.testing.assert_close(dict(model.named_parameters()), reference("plain", 1), rtol=0, atol=0)
    assert engine.differences() == []
