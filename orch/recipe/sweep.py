"""The `sweep` section of a recipe: what is varied, what is sought, how, and for how long.

Short forms are written out before this schema sees them: a list of choices, one objective, a sampler's bare name.
"""

import math
import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from orch.errors import did_you_mean, quoted
from orch.recipe.section import Count, NearNameError, Section
from orch.units import BYTES, SECONDS, Dimension

SAMPLERS = (
    "TPESampler", "RandomSampler", "GPSampler", "CmaEsSampler", "NSGAIISampler", "NSGAIIISampler", "QMCSampler",
    "GridSampler", "BruteForceSampler",
)  # fmt: skip
PRUNERS = (
    "NopPruner", "MedianPruner", "PercentilePruner", "SuccessiveHalvingPruner", "HyperbandPruner", "PatientPruner",
    "ThresholdPruner", "WilcoxonPruner",
)  # fmt: skip
"""What Optuna calls its samplers and pruners; this layer does not know Optuna, and a test compares."""

METRICS = {
    "step_time": "seconds of a step, in steady state",
    "throughput": "samples per second of all workers together",
    "speedup": "step time of the baseline, with the same settings, over that of the stack",
    "exposed_time": "seconds of a step beyond the same plan with communication free",
    "payload": "bytes that a worker hands to collectives in a step",
    "wire": "bytes that a worker sends in a step",
    "memory": "bytes that a worker holds at the most, as predicted",
    "loss": "training loss at the end, mean of ten steps",
    "val_loss": "loss on held-out data at the end",
    "val_accuracy": "accuracy on held-out data at the end",
    "time_to_target": "seconds of own time until the recipe's target is reached",
}
"""What a sweep may seek or bound."""

LEARNED = ("loss", "val_loss", "val_accuracy", "time_to_target")
"""Metrics that only training can tell; the others can be predicted too."""

Metric = Literal[
    "step_time", "throughput", "speedup", "exposed_time", "payload", "wire", "memory", "loss", "val_loss",
    "val_accuracy", "time_to_target",
]  # fmt: skip


UNITS: dict[str, Dimension] = {
    "step_time": SECONDS,
    "exposed_time": SECONDS,
    "time_to_target": SECONDS,
    "payload": BYTES,
    "wire": BYTES,
    "memory": BYTES,
}


def bound_value(metric: str, value: object) -> float:
    """Return a bound of a metric as an SI float. Raises ValueError for a missing or wrong unit, and for a share beyond 1."""
    if metric in UNITS:
        return UNITS[metric].parse(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"must be a finite number; it is {str(value).lower() if isinstance(value, bool) else value!r}")
    if metric == "val_accuracy" and not 0 <= value <= 1:
        raise ValueError(f"must lie between 0 and 1: an accuracy is a share; it is {value!r}")
    return float(value)


def unreadable(metric: str, value: object) -> str | None:
    """Return why a bound of a metric cannot be read, or None."""
    try:
        bound_value(metric, value)
    except ValueError as error:
        return str(error)
    return None


def _deadline(value: str) -> str:
    match = re.fullmatch(r"walltime(?:\s*-\s*(.+))?", value.strip())
    amount = value.strip() if match is None else match[1]
    try:
        if amount is not None:
            SECONDS.parse(amount)
    except ValueError:
        raise ValueError("must be a time from now (90min), walltime, or walltime - 10min") from None
    return value


def _study(value: str) -> str:
    if not value.isprintable() or not value.strip() or len(value) > 100 or re.search(r" \(\d+\)$", value):
        raise ValueError(
            "must be printable text of at most 100 characters, without a number in brackets at its end: that names a study "
            "that was begun again"
        )
    return value


def _known(names: tuple[str, ...]) -> Any:
    def check(value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        odd = next((name for name in value if name not in names), None)
        if odd is not None:
            near = did_you_mean(odd, names) or _meant(odd, names)
            raise NearNameError(f"{quoted(odd)} is none of {', '.join(names)}", near)
        if len(value) != 1:
            found = f"names {', '.join(value)}" if value else "names nothing"
            raise ValueError(f"{found}, where one of {', '.join(names)} is wanted, with its arguments if it has any")
        return value

    return AfterValidator(check)


def _meant(word: str, names: tuple[str, ...]) -> str:
    """Return the name that a short word begins: `tpe` is TPESampler."""
    found = next((name for name in names if name.lower().startswith(word.lower())), None) if word else None
    return f"did you mean {found}?" if found is not None else ""


class Over(Section):
    """The values of one setting: choices, or a range with `low` and `high`; nothing at all is a knob's own range."""

    choices: Annotated[list[Any], Field(min_length=1)] | None = Field(
        default=None, description="the values to choose from"
    )
    low: Any = Field(default=None, description="least value of a range, with its unit if it has one")
    high: Any = Field(default=None, description="greatest value of a range, included")
    step: Any = Field(default=None, description="distance of neighbouring values; default: any value of the range")
    log: bool = Field(default=False, description="draw the logarithm evenly, for values over several decades")
    when: dict[str, list[Any]] = Field(
        default={}, description="only where other settings of the sweep have these values: {PATH: VALUE | [VALUES]}"
    )

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        ranged = any(value is not None for value in (self.low, self.high, self.step)) or self.log
        if self.choices is not None and ranged:
            raise ValueError("must hold either choices or a range, not both")
        if ranged and (self.low is None or self.high is None):
            raise ValueError("must hold low and high: a range has two ends")
        return self


class Bound(Section):
    """What a metric must keep to; a trial that does not is infeasible."""

    at_most: Any = Field(default=None, description="the greatest allowed value, with its unit if it has one")
    at_least: Any = Field(default=None, description="the least allowed value, with its unit if it has one")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("must hold exactly one of at_most, at_least")
        return self


class SimulateFirst(Section):
    """A search in simulation whose best settings are then measured."""

    trials: Count = Field(default=400, description="simulated trials")
    confirm: Count = Field(default=12, description="of their best, how many are measured")


class Sweep(Section):
    """A search over settings: `orch sweep`."""

    over: Annotated[dict[str, Over], Field(min_length=1)] = Field(
        description="what is varied: {PATH: [choices] | {low, high} | auto}; `stack` is which of the stacks runs"
    )
    minimize: list[Metric] = Field(default=[], description="one metric or several that are to be small")
    maximize: list[Metric] = Field(default=[], description="one metric or several that are to be large")
    constraints: dict[Metric, Bound] = Field(
        default={}, description="what metrics must keep to: {memory: {at_most: 16GiB}}"
    )
    trials: Count | None = Field(
        default=None, description="trials of the whole study, over all its invocations; default: 40, a grid's size"
    )
    parallel: Count = Field(default=1, description="trials that run at the same time, each in a gang of its own")
    seed: int = Field(default=0, ge=0, lt=2**32, description="of the sampler; trial n draws from (seed, n)")
    sampler: Annotated[dict[str, dict[str, Any]], _known(SAMPLERS)] = Field(
        default={"TPESampler": {}}, description="what proposes settings: one of Optuna's samplers, with its arguments"
    )
    pruner: Annotated[dict[str, dict[str, Any]], _known(PRUNERS)] = Field(
        default={"NopPruner": {}},
        description="what ends hopeless trials early: one of Optuna's pruners, with arguments",
    )
    measure: Literal["exclusive", "shared"] = Field(
        default="exclusive", description="exclusive: real trials run one at a time; shared: those that met are tagged"
    )
    simulate_first: SimulateFirst | None = Field(
        default=None, description="search in simulation first, then measure the best: {trials: 400, confirm: 12}"
    )
    confirm: bool = Field(
        default=True, description="measure the best again, in fresh blocks beside the baseline; only that is its gain"
    )
    reuse: bool = Field(
        default=True, description="take what an equal cell gave, in this study or an earlier one; false runs it again"
    )
    study: Annotated[str, AfterValidator(_study)] | None = Field(
        default=None, description="name of the study; default: the recipe's"
    )
    storage: str | None = Field(
        default=None, min_length=1, description="database of a team (postgresql://...); default: a file beside the runs"
    )
    deadline: Annotated[str, AfterValidator(_deadline)] | None = Field(
        default=None, description="when to begin no more trials: a time from now (2h), or walltime - 10min under Slurm"
    )
    retries: int = Field(default=2, ge=0, description="how often a trial whose worker was lost is run again")

    @model_validator(mode="after")
    def _sought(self) -> Self:
        sought = [*self.minimize, *self.maximize]
        if not sought:
            raise ValueError("must say what is sought: minimize or maximize, such as minimize: step_time")
        if len(set(sought)) != len(sought):
            raise ValueError("must name a metric once in minimize and maximize")
        return self

    @property
    def objectives(self) -> tuple[tuple[str, bool], ...]:
        """What is sought: (metric, whether it is to be large), those to be small first."""
        return (*((name, False) for name in self.minimize), *((name, True) for name in self.maximize))
