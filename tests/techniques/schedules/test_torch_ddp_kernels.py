"""torch's DDP behind the engine interface: its real buckets are the plan's, and our engine equals it bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from orch.plan import Plan, check
from orch.runtime.base import Engine, Setup
from orch.runtime.checkpoint import take
from orch.runtime.engine import PlanEngine
from orch.runtime.observe import observe
from orch.runtime.optimizers import optimizer_factory
from orch.stack import payload_bytes
from orch.testing import small
from orch.workload import data_parallel
from techniques.schedules import bucketed, torch_ddp
from techniques.schedules.torch_ddp_kernels import REBUILT_AFTER, DdpEngine
from tests.runtime.models import batch, build
from tests.runtime.worlds import World, run

SGD = {"sgd": {"lr": 0.1, "momentum": 0.9}}
MODELS = ["plain", "tied", "twice", "unused", "frozen", "convolved", "attention"]
CAP = 400  # bytes: several buckets in each of these models


def loss_of(module: Any, rank: int, step: int) -> torch.Tensor:
    inputs, targets = batch(rank, step)
    return nn.functional.cross_entropy(module(inputs), targets)


def plan_of(name: str, size: int, technique: Any, config: Any) -> Plan:
    model = build(name)
    seen = observe(model, lambda module: loss_of(module, 0, 0), optimizer_factory(SGD), steps=1, warmup=0)
    context = small.context(seen.profile, small.cluster(size, 1e-4, 1e-9))
    return check(technique.rewrite(data_parallel(seen.profile, size, 4), context, config), finished=True)


def train(world: World, name: str, plan: Plan, kind: type[Engine], config: Any, steps: int = 5) -> dict[str, Any]:
    model = build(name)
    groups = {"world": world.group(threads=2 if kind is DdpEngine else 1)}
    engine = kind(plan, model, Setup(optimizer_factory(SGD), world.rank, config=config), groups)  # type: ignore[call-arg]
    for step in range(steps):
        engine.train_step(lambda module, step=step: loss_of(module, world.rank, step))
    found = {key: value.detach().numpy() for key, value in model.named_parameters()}
    buckets = engine.buckets() if isinstance(engine, DdpEngine) else []
    return {"parameters": found, "differences": engine.differences(), "buckets": buckets}


@pytest.mark.parametrize("name", MODELS)
def test_bit_equal_to_ddp_and_same_buckets(name: str) -> None:
    config = torch_ddp.Config(bucket_cap=f"{CAP}B", first_bucket="40B")
    ours = bucketed.Config(cap=f"{CAP}B", first_bucket="40B")
    ddp = run(2, train, name, plan_of(name, 2, torch_ddp, config), DdpEngine, config)
    mine = run(2, train, name, plan_of(name, 2, bucketed, ours), PlanEngine, None)
    for theirs, own in zip(ddp, mine, strict=True):
        assert own["differences"] == []
        assert theirs["differences"] == []
        for key, value in theirs["parameters"].items():
            assert (own["parameters"][key] == value).all(), key


@pytest.mark.parametrize("size", [1, 3])
def test_other_worlds_are_close(size: int) -> None:
    config = torch_ddp.Config(bucket_cap=f"{CAP}B", first_bucket="40B")
    plan = plan_of("plain", size, torch_ddp, config)
    ddp = run(size, train, "plain", plan, DdpEngine, config)
    mine = run(size, train, "plain", plan, PlanEngine, None)
    for theirs, own in zip(ddp, mine, strict=True):
        for key, value in theirs["parameters"].items():
            torch.testing.assert_close(torch.tensor(own["parameters"][key]), torch.tensor(value), rtol=1e-5, atol=1e-6)


def test_a_plan_with_other_buckets_is_caught() -> None:
    config = torch_ddp.Config(bucket_cap=f"{CAP}B", first_bucket="40B")
    wrong = plan_of("plain", 2, torch_ddp, torch_ddp.Config(bucket_cap="0B", first_bucket="0B"))
    for result in run(2, train, "plain", wrong, DdpEngine, config):
        assert result["differences"] != []


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4])
def test_buckets_are_judged_when_ddp_tells_of_them_and_from_then_on(steps: int) -> None:
    config = torch_ddp.Config(bucket_cap=f"{CAP}B", first_bucket="40B")
    plan = plan_of("plain", 2, torch_ddp, config)
    for result in run(2, train, "plain", plan, DdpEngine, config, steps):
        assert result["differences"] == []
        assert bool(result["buckets"]) == (steps >= REBUILT_AFTER)


def test_bf16_hook_trains() -> None:
    config = torch_ddp.Config(hook="bf16")
    plan = plan_of("plain", 2, torch_ddp, config)
    first, second = run(2, train, "plain", plan, DdpEngine, config)
    assert first["differences"] == []
    for key, value in first["parameters"].items():
        assert (second["parameters"][key] == value).all()


LOW_RANK = torch_ddp.Config(hook="power-sgd", rank=1)


def train_in_two(world: World, name: str, plan: Plan, steps: int, cut: int) -> dict[str, Any]:
    """Train `steps` steps, from `cut` on in an engine that knows only what a checkpoint of the first held."""
    group = {"world": world.group()}
    engine = DdpEngine(plan, build(name), Setup(optimizer_factory(SGD), world.rank, config=LOW_RANK), group)
    for step in range(steps):
        if step == cut:
            kept = take(engine.state_dict()).state()
            engine = DdpEngine(plan, build(name), Setup(optimizer_factory(SGD), world.rank, config=LOW_RANK), group)
            engine.load_state_dict(kept)
        engine.train_step(lambda module, step=step: loss_of(module, world.rank, step))
    found = {key: value.detach().numpy() for key, value in engine.parameters.items()}
    return {"parameters": found, "differences": engine.differences(), "sent": engine.payload_bytes()}


@pytest.mark.parametrize("name", ["plain", "tied"])
def test_torchs_power_sgd_sends_what_the_plan_says_and_goes_on_from_a_checkpoint(name: str) -> None:
    plan = plan_of(name, 2, torch_ddp, LOW_RANK)
    whole = run(2, train_in_two, name, plan, 9, -1)
    for key, value in whole[0]["parameters"].items():
        assert (whole[1]["parameters"][key] == value).all(), key
    for cut in (1, 4):
        for result, uncut in zip(run(2, train_in_two, name, plan, 9, cut), whole, strict=True):
            assert (result["differences"], uncut["differences"]) == ([], [])
            assert result["sent"] == uncut["sent"] == payload_bytes(plan)
            for key, value in uncut["parameters"].items():
                assert (result["parameters"][key] == value).all(), (cut, key)


def test_a_plan_of_another_rank_is_caught() -> None:
    wrong = plan_of("plain", 2, torch_ddp, torch_ddp.Config(hook="power-sgd", rank=2))
    for result in run(2, train, "plain", wrong, DdpEngine, LOW_RANK):
        assert [text for text in result["differences"] if "powerSGD_hook sends" in text] != []
