"""The contract on real processes: the runtime trains the same made-up model that lockstep ranks train, by the same
plan.

What every rank did is compared with the plan task by task, ranks with one another bit by bit, and the parameters with
those of the lockstep ranks.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from orch.gang import Gang, make_gang
from orch.models.profile import Profile
from orch.plan import Plan
from orch.runtime.base import Engine, Setup
from orch.runtime.engine import PlanEngine
from orch.runtime.optimizers import optimizer_factory
from orch.stack import engine as engine_of
from orch.testing.lockstep import Lockstep, distance, drawn

if TYPE_CHECKING:
    from orch.gang import Worker
    from orch.stack import Member

LR = 0.1


@dataclass(frozen=True)
class Job:
    """What the ranks train. A checkpoint is taken and gone on from, in a new engine, before step `resume_at`."""

    plan: Plan
    model: Profile
    steps: int
    engine: str | None = None
    config: Any = None
    resume_at: int | None = None


@dataclass(frozen=True)
class Outcome:
    """What one rank ended with: parameters as nested lists by name, and where it did not follow the plan."""

    parameters: dict[str, Any]
    differences: list[str]
    payload_bytes: float


class Made(nn.Module):
    """The made-up model: a layer's loss is half the squared distance of its parameters to this rank's targets."""

    def __init__(self, model: Profile) -> None:
        super().__init__()
        for module in model.modules:
            self.add_module(module.name, Layer())
        for tensor in model.tensors:
            owner = self.get_submodule(tensor.modules[0])
            inner = tensor.name.removeprefix(f"{tensor.modules[0]}.")
            while "." in inner:
                first, inner = inner.split(".", 1)
                if first not in dict(owner.named_children()):
                    owner.add_module(first, nn.Module())
                owner = owner.get_submodule(first)
            owner.register_parameter(inner, nn.Parameter(drawn(tensor.shape, f"parameter {tensor.name}")))
        self._names = [module.name for module in model.modules]

    def forward(self, rank: int, step: int) -> Tensor:
        """Return the sum of the layers' losses; backward reaches the last layer first."""
        loss = torch.zeros(())
        for name in self._names:
            loss = self.get_submodule(name)(loss, name, rank, step)
        return loss


class Layer(nn.Module):
    """One layer: reads all parameters below it itself, so its own forward is the moment they are read."""

    def forward(self, loss: Tensor, name: str, rank: int, step: int) -> Tensor:
        """Return `loss` plus this layer's own."""
        for inner, value in self.named_parameters():
            target = value.detach() - distance(rank, step, f"{name}.{inner}", value.detach())
            loss = loss + 0.5 * (value - target).square().sum()
        return loss


def train(worker: Worker, job: Job) -> Outcome:
    """Train on one rank, as `job` says."""
    engine = _engine(worker, job)
    differences: list[str] = []
    for step in range(job.steps):
        if step == job.resume_at:
            state = engine.state_dict()
            differences += engine.differences()
            engine.settle()
            engine.close()
            engine = _engine(worker, job)
            engine.load_state_dict(state)
        engine.train_step(partial(_loss, rank=worker.rank, step=step))
    engine.flush()
    differences += engine.differences()
    parameters = {name: value.detach().tolist() for name, value in engine.model.named_parameters()}
    payload = engine.payload_bytes()
    engine.settle()
    engine.close()
    return Outcome(parameters, differences, payload)


def _loss(module: nn.Module, rank: int, step: int) -> Tensor:
    loss: Tensor = module(rank, step)
    return loss


def _engine(worker: Worker, job: Job) -> Engine:
    model = Made(job.model)
    setup = Setup(optimizer_factory({"sgd": {"lr": LR}}), worker.rank, config=job.config, progress=worker.progress)
    make: Callable[..., Engine] = PlanEngine
    threads = 1
    if job.engine is not None:
        module, _, kind = job.engine.partition(":")
        make, threads = getattr(importlib.import_module(module), kind), 2
    wanted = job.plan.groups if worker.world_size > 1 or job.engine is not None else ()
    groups = {name: worker.process_group(name, threads=threads) for name in wanted}
    return make(job.plan, model, setup, groups)


def job_of(plan: Plan, model: Profile, members: Sequence[Member], steps: int) -> Job:
    """Return the job of a stack: its plan, and the engine that one of its members may bring."""
    brings = next((member for member in members if member.technique.engine is not None), None)
    return Job(plan, model, steps, engine_of(members), None if brings is None else brings.config)


def check_real(gang: Gang, job: Job, lossless: bool) -> None:
    """Run `job` on the gang; raises AssertionError where a rank left the plan, ranks differ, or results do.

    Lossless plans equal lockstep ranks within 1e-5; lossy ones within 1e-3, since what they keep hangs on rounding.
    """
    outcomes = gang.call(train, job)
    for rank, outcome in enumerate(outcomes):
        assert outcome.differences == [], f"rank {rank} left the plan: {outcome.differences[0]}"
        assert outcome.parameters == outcomes[0].parameters, f"parameters of ranks 0 and {rank} differ"
    expected = Lockstep(job.plan, job.model, lr=LR).run(job.steps).ranks[0].parameters
    tolerance = 1e-5 if lossless else 1e-3
    for name, value in expected.items():
        found = torch.tensor(outcomes[0].parameters[name]).view(value.shape)
        gap = float((found - value).abs().max()) if value.numel() else 0.0
        assert gap <= tolerance, f"parameter {name} is {gap:.3g} away from what the plan computes"
    if job.engine is None and job.steps > 1:
        resumed = gang.call(train, replace(job, resume_at=job.steps // 2))
        same = [outcome.parameters for outcome in resumed] == [outcome.parameters for outcome in outcomes]
        assert same, "parameters differ after a checkpoint and a resume"


__all__ = ["Job", "Made", "Outcome", "check_real", "job_of", "make_gang", "train"]
