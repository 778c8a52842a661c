"""What a run found out, as plain values that need no torch to be read, compared and drawn."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from orch.errors import RunError
from orch.experiment.breakdown import Breakdown
from orch.experiment.expert_load import Loads
from orch.experiment.predict import Forecast
from orch.plan.timeline import Timeline
from orch.recipe import Recipe

Mode = Literal["emulated", "measured"]


def mode_of(on: str) -> Mode:
    """Return what figures are called that workers reached by `on` have made."""
    return "emulated" if on == "emulate" else "measured"


@dataclass
class Trained:
    """What one stack did under one seed: per step its loss and seconds, per block its step time, and its curves.

    `clock_s` [steps] is the stack's own clock at the end of each step; `judged` holds (clock_s, loss, accuracy) on
    held-out data before the first step and after every block; `loads` of mixtures' experts (step, clock_s, loads) come
    after every block. `peak_bytes` is the most memory that a worker held for it. `timeline` is rank 0's, of a few last
    steps; `breakdown` says where their time went. `ranks` are the timelines of all, on rank 0's clock within
    `clock_error_s`.
    """

    stack: str
    seed: int
    losses: list[float] = field(default_factory=list)
    clock_s: list[float] = field(default_factory=list)
    block_times_s: list[float] = field(default_factory=list)
    judged: list[tuple[float, float, float]] = field(default_factory=list)
    payload_bytes: list[float] = field(default_factory=list)
    loads: list[tuple[int, float, Loads]] = field(default_factory=list)
    peak_bytes: int | None = None
    timeline: Timeline | None = None
    breakdown: Breakdown | None = None
    ranks: tuple[Timeline | None, ...] = ()
    clock_error_s: float = 0.0

    def first(self, blocks: int, steps: int) -> Trained:
        """Return the first `blocks` blocks of this training, which end with step `steps`."""
        return replace(
            self,
            losses=self.losses[:steps],
            clock_s=self.clock_s[:steps],
            block_times_s=self.block_times_s[:blocks],
            judged=self.judged[: blocks + 1],
            loads=[each for each in self.loads if each[0] <= steps],
            payload_bytes=self.payload_bytes[:blocks],
        )


@dataclass(frozen=True)
class Outcome:
    """What a run has found out so far; `trained` grows with each seed that begins."""

    recipe: Recipe
    forecast: Forecast
    trained: list[Trained] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    def of(self, stack: str) -> list[Trained]:
        """Return the trainings of one stack, by seed."""
        return [trained for trained in self.trained if trained.stack == stack]

    @property
    def clock_error_s(self) -> float | None:
        """How far a stamp of any rank may be off on rank 0's clock, seconds; None where no rank recorded anything."""
        return max((trained.clock_error_s for trained in self.trained if trained.ranks), default=None)

    def comparable(self) -> Outcome | None:
        """Return the part in which every stack has done the same blocks, so that they can be paired; None for none.

        All of a finished run; of one that was cut short, the seeds in which every stack has finished a block, up to the
        last block that all have finished.
        """
        measure, kept = self.recipe.measure, list[Trained]()
        for seed in dict.fromkeys(trained.seed for trained in self.trained):
            runs = [trained for trained in self.trained if trained.seed == seed]
            blocks = min(len(trained.block_times_s) for trained in runs)
            if blocks and len(runs) == len(self.recipe.stacks):
                kept += [trained.first(blocks, measure.warmup + blocks * measure.steps) for trained in runs]
        return replace(self, trained=kept) if kept else None

    def before_shrinking(self) -> Outcome:
        """Return what was measured before the gang lost nodes for good. RunError (E667): no block of all stacks was."""
        found = self.comparable()
        if found is None:
            raise RunError(
                "all was trained, but no block was measured by all stacks before nodes were lost for good",
                code="E667",
                hint="train.checkpoint keeps the trained models",
            )
        return found
