"""What every engine offers to the training loop, and the parts that all of them share: optimiser, record, checkpoints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from orch.errors import OrchError
from orch.plan import Plan, Task, Update
from orch.runtime.clock import clock_of
from orch.runtime.optimizers import Factory, Optimizers, Schedule
from orch.runtime.record import Record

# Name of a plan's group -> process group. Never the global default group.
Groups = Mapping[str, Any]


# Threads of a gloo group: torch's own default. With one, each small collective pays its start-up alone.
GLOO_THREADS = 2


class Progress(Protocol):
    """Where an engine says what it waits for, so that a hung collective can be named. A call costs microseconds."""

    def set(self, step: int, task: str, waiting: bool) -> None:
        """Say that step `step` is at `task`, waiting for other ranks or not."""


class Silent:
    """Progress that nobody watches."""

    def set(self, step: int, task: str, waiting: bool) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Setup:
    """What an engine is told beside plan, model and process groups.

    `seed` feeds the generators that are equal on all ranks; `config` is the technique's Config for an engine of its
    own.
    """

    optimizer: Factory
    rank: int = 0
    seed: int = 0
    schedule: Schedule = field(default_factory=Schedule)
    config: Any = None
    progress: Progress = field(default_factory=Silent)
    record_steps: int = 512


class Engine(ABC):
    """One model trained by one plan on this rank.

    A step is `begin_step`, forward, `backward(loss)`, `finish_step`; `train_step` does all four. After `flush` the
    parameters hold everything that was sent: call it before evaluating, saving or reading them.
    """

    def __init__(self, plan: Plan, model: nn.Module, setup: Setup) -> None:
        self.plan = plan
        self.model = model
        # What the training loop calls: the model, or what an engine wraps around it.
        self.module: nn.Module = model
        self.setup = setup
        self.rank = setup.rank
        self.world_size = plan.world_size
        self.step = 0
        self.parameters: dict[str, nn.Parameter] = dict(model.named_parameters())
        self.device = next((parameter.device for parameter in self.parameters.values()), torch.device("cpu"))
        self.clock = clock_of(self.device)
        self.record = Record(plan, self.clock, setup.record_steps)
        # Whether the next steps stamp the ends of collectives exactly (see `StepRecord.exact`).
        self.exact = False
        self._known(plan)
        cuts = [op.parameters for task in self._mine(plan) if isinstance(op := task.op, Update)]
        self.optimizers = Optimizers(cuts, self.parameters, setup.optimizer, setup.schedule)

    def _known(self, plan: Plan) -> None:
        planned = dict.fromkeys(tensor for task in self._mine(plan) for tensor in task.op.tensors)
        unknown = [name for name in planned if name not in self.parameters]
        if unknown:
            raise OrchError(
                f"the plan speaks of parameter {unknown[0]!r}, which the model does not have", code="E622",
                hint="plan from a profile of this model",
            )  # fmt: skip

    def _mine(self, plan: Plan) -> Iterator[Task]:
        """Yield the tasks that this rank runs."""
        return (task for step in plan.steps for task in step if self.rank in plan.roles[task.role])

    @property
    def modules(self) -> frozenset[str]:
        """The names of the model's modules."""
        return frozenset(name for name, _ in self.model.named_modules())

    @abstractmethod
    def begin_step(self) -> None:
        """Start a step: launch what may run before the forward."""

    @abstractmethod
    def backward(self, loss: Tensor) -> None:
        """Run the backward of `loss`; collectives start while it runs."""

    @abstractmethod
    def finish_step(self) -> None:
        """Run what the plan has after the last gradient, the optimiser included."""

    @abstractmethod
    def flush(self) -> None:
        """Finish the work that the plan would do in the next step. Every rank must call it."""

    @abstractmethod
    def differences(self) -> list[str]:
        """Return in what the recorded steps differ from the plan, a sentence each; empty when they conform."""

    def payload_bytes(self) -> float:
        """Return the bytes that a step handed to collectives, averaged over the recorded steps."""
        return self.record.bytes_per_step()

    @abstractmethod
    def settle(self) -> None:
        """Wait until no collective is in flight, without doing any later work."""

    @abstractmethod
    def close(self) -> None:
        """Take the hooks off the model and let go of buffers."""

    def train_step(self, loss_of: Callable[[nn.Module], Tensor]) -> Tensor:
        """Run one step; `loss_of(module)` computes the loss. Returns it, detached."""
        self.begin_step()
        loss = loss_of(self.module)
        self.backward(loss)
        self.finish_step()
        return loss.detach()

    def extra_state(self) -> dict[str, Any]:
        """Return what a checkpoint needs beside parameters, optimiser and step."""
        return {}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Take back what `extra_state` returned."""
        del state

    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides the next steps. Flushes first, so every rank must call it."""
        self.flush()
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizers.state_dict(),
            "engine": self.extra_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned: the next steps equal those of the run that was saved, bit for bit."""
        self.model.load_state_dict(state["model"])
        self.optimizers.load_state_dict(state["optimizer"])
        self.load_extra_state(state["engine"])
        self.step = state["step"]


def backend_of(group: Any, device: torch.device) -> Any:
    """Return the backend of a process group for `device`: one dispatch less a call, and direct access to its
    collectives.
    """
    return group._get_backend(device) if hasattr(group, "_get_backend") else group
