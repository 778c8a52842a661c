"""What a run comes to: every stack's figures beside its prediction, as data for programs and as a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from orch.experiment import expert_load
from orch.experiment.breakdown import Breakdown, breakdown, scaled
from orch.experiment.outcome import Outcome, Trained
from orch.experiment.predict import Forecast, StackForecast
from orch.experiment.quality import at_time, smoothed, time_to
from orch.experiment.statistics import Speedup, Summary, compare, compare_all, summary
from orch.recipe.schema import Target


@dataclass(frozen=True)
class Quality:
    """Loss and held-out accuracy, means over seeds; `seconds` is the own time at which stacks are compared."""

    first_loss: float
    last_loss: float
    accuracy: float
    seconds: float
    loss_then: float | None
    accuracy_then: float | None
    time_to_target_s: float | None


@dataclass(frozen=True)
class StackResult:
    """The figures of one stack: measured, compared with the baseline (which is 1 over itself), and predicted."""

    name: str
    step_time_s: Summary
    speedup: Speedup
    quality: Quality
    payload_bytes: float
    forecast: StackForecast
    breakdown: Breakdown | None = None
    # By mixture: how its experts were loaded in the last block.
    mixtures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # The most memory that a worker held for it, None where nobody measured it.
    peak_bytes: int | None = None

    @property
    def prediction_error(self) -> float:
        """Predicted over measured, less 1."""
        return self.forecast.step_time_s.median / self.step_time_s.median - 1.0


def results(outcome: Outcome) -> dict[str, StackResult]:
    """Return the figures of every stack, pooled over blocks and seeds, in the recipe's order.

    The outcome must be comparable: `Outcome.comparable` says what of an unfinished one is.
    """
    recipe = outcome.recipe
    times = {name: [t for run in outcome.of(name) for t in run.block_times_s] for name in recipe.stacks}
    baseline = recipe.baseline.name
    speedups = {baseline: compare(times[baseline], times[baseline], over=baseline), **compare_all(times, baseline)}
    # Curves can be compared up to the time that the fastest stack has trained: after it nothing is known of that stack.
    until = min(run.clock_s[-1] for run in outcome.trained)
    return {
        name: StackResult(
            name,
            summary(times[name]),
            speedups[name],
            _quality(outcome.of(name), until, recipe.target),
            fmean(value for run in outcome.of(name) for value in run.payload_bytes),
            outcome.forecast.stacks[name],
            _breakdown(outcome.of(name), summary(times[name]).median),
            expert_load.summary(outcome.of(name)[-1].loads),
            max((run.peak_bytes for run in outcome.of(name) if run.peak_bytes is not None), default=None),
        )
        for name in recipe.stacks
    }


def _breakdown(runs: Sequence[Trained], step_time_s: float) -> Breakdown | None:
    parts = [run.breakdown for run in runs if run.breakdown is not None]
    return scaled(parts, step_time_s) if parts else None


def _quality(runs: Sequence[Trained], until: float, target: Target | None) -> Quality:
    losses = [at_time(run.clock_s, smoothed(run.losses), until) for run in runs]
    judged = [([clock for clock, _, _ in run.judged], [accuracy for _, _, accuracy in run.judged]) for run in runs]
    accuracies = [at_time(clock, values, until) for clock, values in judged]
    return Quality(
        first_loss=fmean(run.losses[0] for run in runs),
        last_loss=fmean(smoothed(run.losses)[-1] for run in runs),
        accuracy=fmean(run.judged[-1][2] for run in runs),
        seconds=until,
        loss_then=_mean(losses),
        accuracy_then=_mean(accuracies),
        time_to_target_s=None if target is None else _mean([_reached(run, target) for run in runs]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    """A mean over seeds exists only where every seed has a value: a mean over the seeds that got there would flatter."""
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _reached(run: Trained, target: Target) -> float | None:
    falling = target.metric.endswith("loss")
    if target.metric == "loss":
        return time_to(run.clock_s, smoothed(run.losses), target.reach, falling=True)
    column = 1 if falling else 2
    clock, values = [point[0] for point in run.judged], [point[column] for point in run.judged]
    return time_to(clock, values, target.reach, falling=falling)


def median_prediction_error(found: Mapping[str, StackResult]) -> float:
    """Return the median of the absolute prediction errors of all stacks."""
    return median(abs(result.prediction_error) for result in found.values())


def document(outcome: Outcome, found: Mapping[str, StackResult], mode: str) -> dict[str, object]:
    """Return the results as plain data, with the keys that `orch run --json` promises."""
    return {
        **_head(outcome.forecast, mode),
        "median_prediction_error": median_prediction_error(found),
        "notes": list(outcome.notes),
        "stacks": {name: _stack_document(result) for name, result in found.items()},
    }


def simulated_document(forecast: Forecast) -> dict[str, object]:
    """Return predictions in the form of results; what only a real run can know is None."""
    return {
        **_head(forecast, "simulated"),
        "median_prediction_error": None,
        "notes": [],
        "stacks": {name: _simulated_stack(forecast, stack) for name, stack in forecast.stacks.items()},
    }


def _head(forecast: Forecast, mode: str) -> dict[str, object]:
    return {
        "experiment": forecast.recipe,
        "mode": mode,
        "workers": forecast.cluster.world_size,
        "baseline": forecast.baseline,
        "ceiling": {"step_time_s": forecast.ceiling_s, "speedup": forecast.ceiling_speedup},
    }


def _stack_document(result: StackResult) -> dict[str, object]:
    time, quality = result.step_time_s, result.quality
    return {
        "step_time_s": {"median": time.median, "lo": time.lo, "hi": time.hi},
        "predicted_step_time_s": result.forecast.step_time_s.median,
        "prediction_error": result.prediction_error,
        "speedup": result.speedup.to_json(),
        "loss": {"first": quality.first_loss, "last": quality.last_loss},
        "accuracy": quality.accuracy,
        "at_equal_time": {
            "seconds": quality.seconds,
            "loss": quality.loss_then,
            "accuracy": quality.accuracy_then,
        },
        "time_to_target_s": quality.time_to_target_s,
        "mixtures": result.mixtures,
        "payload_bytes_per_worker": result.payload_bytes,
        "wire_bytes_per_worker": result.forecast.footprint.wire,
        "peak_memory_bytes": result.peak_bytes,
        "predicted_peak_memory_bytes": result.forecast.footprint.peak_memory,
        "breakdown_s": result.breakdown,
        "predicted_breakdown_s": breakdown(result.forecast.timeline),
        "note": _note(result.speedup),
        "lossless": result.forecast.lossless,
        "conformant": True,  # a stack that was not has ended the run
    }


def _simulated_stack(forecast: Forecast, stack: StackForecast) -> dict[str, object]:
    band = stack.step_time_s
    return {
        "step_time_s": {"median": band.median, "lo": band.lo, "hi": band.hi},
        "predicted_step_time_s": band.median,
        "prediction_error": None,
        "speedup": {
            "over": forecast.baseline,
            "median": forecast.speedup(stack.name),
            "lo": None,
            "hi": None,
            "level": None,
            "n": 0,
            "method": "simulated",
            "distinguishable": None,
        },
        "loss": None,
        "accuracy": None,
        "at_equal_time": None,
        "time_to_target_s": None,
        "payload_bytes_per_worker": stack.footprint.payload,
        "wire_bytes_per_worker": stack.footprint.wire,
        "peak_memory_bytes": stack.footprint.peak_memory,
        "predicted_peak_memory_bytes": stack.footprint.peak_memory,
        "breakdown_s": breakdown(stack.timeline),
        "predicted_breakdown_s": breakdown(stack.timeline),
        "note": f"rests on {stack.step_time_s.basis}",
        "lossless": stack.lossless,
        "conformant": None,
    }


def _note(speedup: Speedup) -> str:
    """Say what a cell of a table has no room for: why nothing can be told, and which blocks are odd."""
    if not speedup.distinguishable:
        return str(speedup)
    odd = ", ".join(str(block + 1) for block in speedup.outliers)
    return f"far from the others: block {odd}" if odd else ""
