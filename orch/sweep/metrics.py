"""What a trial is judged by: metrics with their unit, from a plan or from a training; better, bounded, worth keeping."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orch.recipe.sweep import LEARNED, Sweep, bound_value
from orch.units import format_bytes, format_seconds

Values = Mapping[str, float]

SUFFIX = {
    "step_time": "_s",
    "exposed_time": "_s",
    "time_to_target": "_s",
    "throughput": "_samples_per_s",
    "payload": "_bytes",
    "wire": "_bytes",
    "memory": "_bytes",
}
RATIOS = ("step_time", "throughput", "exposed_time", "payload", "wire", "memory", "time_to_target")
"""Metrics of which one is said to be so many times another; of the rest the difference is said."""


def key(metric: str) -> str:
    """Return the name of a metric in JSON, its unit behind it."""
    return metric + SUFFIX.get(metric, "")


@dataclass(frozen=True, slots=True)
class Objective:
    """One thing sought: a metric, and whether it is to be large."""

    metric: str
    maximize: bool

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        """What Optuna calls it."""
        return "maximize" if self.maximize else "minimize"

    def better(self, left: float, right: float) -> bool:
        """Whether `left` is better than `right`."""
        return left > right if self.maximize else left < right

    def loss(self, value: float) -> float:
        """Return the value as something to be small."""
        return -value if self.maximize else value

    def gain(self, best: float, baseline: float) -> float:
        """Return how many times as good `best` is; for a metric that is no ratio, by how much it is better."""
        if self.metric not in RATIOS:
            return best - baseline if self.maximize else baseline - best
        over, under = (best, baseline) if self.maximize else (baseline, best)
        return over / under if under else math.inf


@dataclass(frozen=True, slots=True)
class Constraint:
    """A bound on a metric; its violation is at most 0 where it holds, relative to the bound."""

    metric: str
    bound: float
    at_most: bool

    def violation(self, value: float) -> float:
        """Return how far `value` is beyond the bound, as a share of it; above 0 is too far."""
        beyond = value - self.bound if self.at_most else self.bound - value
        return beyond / abs(self.bound) if self.bound else beyond

    def __str__(self) -> str:
        return f"{self.metric} {'at most' if self.at_most else 'at least'} {self.bound:g}"


@dataclass(frozen=True)
class Sought:
    """The objectives and constraints of a sweep."""

    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...] = ()

    @staticmethod
    def of(sweep: Sweep) -> Sought:
        """Return what a recipe's sweep seeks."""
        bounds = [
            Constraint(
                name, bound_value(name, b.at_most if b.at_most is not None else b.at_least), b.at_most is not None
            )
            for name, b in sweep.constraints.items()
        ]
        return Sought(tuple(Objective(name, large) for name, large in sweep.objectives), tuple(bounds))

    @property
    def metrics(self) -> tuple[str, ...]:
        """Every metric that is needed, once."""
        names = [*(o.metric for o in self.objectives), *(c.metric for c in self.constraints)]
        return tuple(dict.fromkeys(names))

    @property
    def learned(self) -> tuple[str, ...]:
        """The metrics that only training can tell."""
        return tuple(name for name in self.metrics if name in LEARNED)

    def of_values(self, values: Values) -> list[float]:
        """Return the objectives' values in order."""
        return [values[objective.metric] for objective in self.objectives]

    def to_json(self) -> dict[str, object]:
        """Return what decides which trial is best, to be compared with another invocation's."""
        return {
            "objectives": {objective.metric: objective.direction for objective in self.objectives},
            "constraints": [str(constraint) for constraint in self.constraints],
        }

    def dominates(self, left: Sequence[float], right: Sequence[float]) -> bool:
        """Whether `left` is nowhere worse than `right` and somewhere better."""
        pairs = [(o.loss(a), o.loss(b)) for o, a, b in zip(self.objectives, left, right, strict=True)]
        return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)

    def front(self, points: Sequence[Sequence[float]]) -> list[int]:
        """Return the positions of the points that no other dominates; of equal points the first."""
        kept = []
        for index, point in enumerate(points):
            beaten = any(self.dominates(other, point) for other in points)
            if not beaten and not any(list(point) == list(other) for other in points[:index]):
                kept.append(index)
        return kept


class InfeasibleError(Exception):
    """A trial that cannot be: out of memory, not a number, settings that exclude one another. The text says why."""


def checked(values: Values) -> Values:
    """Return `values`. Raises InfeasibleError for one that is no finite number: a sampler must not learn from it."""
    for metric, value in values.items():
        if not math.isfinite(value):
            raise InfeasibleError(f"{metric} is {value}")
    return values


def shown(name: str, value: float | None) -> str:
    """Return a metric for people; `name` is its key in JSON."""
    if value is None:
        return ""
    if name.endswith("_per_s"):
        return f"{value:.0f}/s"
    if name.endswith("_s"):
        return format_seconds(value)
    if name.endswith("_bytes"):
        return format_bytes(value)
    return f"{value:.2f}x" if name == "speedup" else f"{value:.4g}"
