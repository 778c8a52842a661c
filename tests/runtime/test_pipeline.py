"""Stages of a pipeline, on real processes: what each rank learns is what one process learns, however the batch is cut."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from orch import registry
from orch.errors import RunError
from orch.models import catalogue
from orch.runtime.base import Setup
from orch.runtime.optimizers import optimizer_factory
from orch.runtime.pipeline import PipelineEngine
from orch.stack import apply, arrange
from orch.testing import small
from orch.workload import Layout, cuts_of, pipeline_training
from tests.runtime.worlds import World, run

BATCH, STEPS, LR = 6, 3, 0.05


@dataclass(frozen=True)
class Case:
    """A model, how many stages and micro-batches, and the stack."""

    model: str
    stages: int
    micro_batches: int
    arguments: dict[str, Any] = field(default_factory=dict)
    stack: tuple[str, ...] = ("wfbp",)

    def plan(self, world: int) -> Any:
        chosen = catalogue.choose(use=self.model, arguments=self.arguments)
        profile = chosen.profile()
        layout = replace(
            Layout(world), cuts=cuts_of(profile, chosen.parts, self.stages), micro_batches=self.micro_batches
        )
        members = [small.member(registry.technique(name)) for name in self.stack]
        plain = pipeline_training(profile, layout, BATCH)
        return apply(plain, arrange(members, registry.technique), small.context(profile, small.cluster(world)))[0]

    def build(self) -> nn.Module:
        return catalogue.choose(use=self.model, arguments=self.arguments).build(3)

    def batch(self, reader: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(100 * reader + step)
        images = torch.randn(BATCH, 1, 8, 8, generator=generator)
        return images, torch.randint(0, 10, (BATCH,), generator=generator)


MLP = {"widths": [24, 16, 12]}
CASES = {
    "a layer a stage": Case("mlp", 4, 3, MLP),
    "two stages, one micro-batch": Case("mlp", 2, 1, MLP, stack=("bucketed",)),
    "blocks": Case("resnet-digits", 2, 2, {"width": 4, "depth": 3}, stack=("single-bucket",)),
    "many small": Case("tiny-tensors", 4, 6, {"layers": 9, "width": 8}),
    "one stage alone": Case("mlp", 1, 2, MLP, stack=("s-sgd",)),
}


def loss_of(module: Any, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(module(batch[0]), batch[1])


def train_all(world: World, cases: list[Case]) -> list[dict[str, Any]]:
    return [trained(world, case, number) for number, case in enumerate(cases)]


def trained(world: World, case: Case, number: int) -> dict[str, Any]:
    plan, model = case.plan(world.size), case.build()
    groups = {
        name: world.block(f"{name}{number}", list(group.block_of(world.rank)))
        for name, group in plan.groups.items()
        if any(world.rank in block for block in group.blocks)
    }
    setup = Setup(optimizer_factory({"sgd": {"lr": LR, "momentum": 0.9}}), world.rank)
    engine = PipelineEngine(plan, model, setup, groups)
    reader = world.rank // case.stages
    losses = []
    for step in range(STEPS):
        if step == STEPS - 1:  # goes on from a checkpoint
            state = copy.deepcopy(engine.state_dict())
            differences = engine.differences()
            engine.settle()
            engine.close()
            model = case.build()
            engine = PipelineEngine(plan, model, setup, groups)
            engine.load_state_dict(state)
        losses.append(float(engine.train_step(lambda module, step=step: loss_of(module, case.batch(reader, step)))))
    with torch.no_grad():
        answer = model(case.batch(0, 99)[0])
    engine.settle()
    found = {
        "losses": losses,
        "answer": answer,
        "parameters": {name: p.detach().clone() for name, p in model.named_parameters()},
        "differences": [*differences, *engine.differences()],
    }
    engine.close()
    return found


def expected(case: Case, readers: int) -> dict[str, Any]:
    """One process: the mean of the gradients of every reader's batch."""
    model = case.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    losses: list[list[float]] = [[] for _ in range(readers)]
    for step in range(STEPS):
        found = [loss_of(model, case.batch(reader, step)) for reader in range(readers)]
        optimizer.zero_grad()
        (sum(found) / readers).backward()  # type: ignore[union-attr]
        optimizer.step()
        for reader, loss in enumerate(found):
            losses[reader].append(float(loss.detach()))
    with torch.no_grad():
        answer = model(case.batch(0, 99)[0])
    return {"losses": losses, "answer": answer, "parameters": dict(model.named_parameters())}


def check_equal(case: Case, ranks: list[dict[str, Any]]) -> None:
    want = expected(case, len(ranks) // case.stages)
    held: set[str] = set()
    for rank, found in enumerate(ranks):
        assert found["differences"] == []
        assert found["losses"] == pytest.approx(want["losses"][rank // case.stages], abs=1e-5)
        torch.testing.assert_close(found["answer"], want["answer"], rtol=1e-5, atol=1e-5)
        for name, value in found["parameters"].items():
            torch.testing.assert_close(value, want["parameters"][name].detach(), rtol=1e-5, atol=1e-5)
        if rank < case.stages:
            assert held.isdisjoint(found["parameters"])  # a rank keeps its own stage only
            held |= found["parameters"].keys()
    assert held == want["parameters"].keys()


@pytest.mark.parametrize("world", [1, 2, 4])
def test_stages_learn_what_one_process_learns(world: int) -> None:
    cases = [case for case in CASES.values() if world % case.stages == 0]
    assert cases
    for case, ranks in zip(cases, zip(*run(world, train_all, cases), strict=True), strict=True):
        check_equal(case, list(ranks))


def refused(world: World, case: Case) -> str:
    plan = case.plan(1)
    engine = PipelineEngine(
        plan,
        case.build(),
        Setup(optimizer_factory({"sgd": {"lr": LR}})),
        {name: world.group(name) for name in plan.groups},
    )
    engine.begin_step()
    with pytest.raises(RunError) as caught:
        engine.module(torch.zeros(5, 1, 8, 8))
    engine.close()
    return str(caught.value)


def test_a_batch_that_makes_no_equal_micro_batches_is_refused() -> None:
    (message,) = run(1, refused, CASES["one stage alone"])
    assert "5 samples make no 2 micro-batches of one size" in message
