"""Predict one step of every stack of a recipe: plan it, simulate it, and say what the figure rests on. Starts nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orch.experiment.memory import peak_memory_bytes
from orch.plan import Collective, Plan
from orch.plan.timeline import Timeline
from orch.simulate import ready_times, simulate
from orch.technique import Context

if TYPE_CHECKING:
    from orch.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Band:
    """A predicted time with the range its inputs leave open, in seconds."""

    median: float
    lo: float
    hi: float


@dataclass(frozen=True)
class Bucket:
    """One collective of a plan."""

    tensors: tuple[str, ...]
    nbytes: int
    collective: str
    step: int


@dataclass(frozen=True)
class StackForecast:
    """What a stack is predicted to do in one step, in steady state; bytes are a worker's, averaged over the period."""

    name: str
    plan: Plan
    timeline: Timeline
    step_time_s: Band
    ceiling_s: float
    compute_s: float
    payload_bytes: float
    wire_bytes: float
    peak_memory_bytes: int
    lossless: bool
    basis: str
    passes: tuple[str, ...]

    @property
    def exposed_communication_s(self) -> float:
        """Step time beyond the same plan with communication free."""
        return max(0.0, self.step_time_s.median - self.ceiling_s)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The collectives, in launch order."""
        return tuple(
            Bucket(task.op.tensors, task.op.nbytes, task.op.kind, index)
            for index, step in enumerate(self.plan.steps)
            for task in step
            if isinstance(task.op, Collective)
        )
