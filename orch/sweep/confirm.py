"""The best trial again, in fresh blocks beside the baseline: the only figure that is a sweep's gain.

The best of forty equal trials looks 8 % faster than they are, because it was chosen for that. What is measured once
more was not chosen by its result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

from orch.experiment.invoke import keep_traces
from orch.experiment.outcome import Outcome, mode_of
from orch.experiment.results import StackResult, document, results
from orch.experiment.statistics import Speedup
from orch.recipe import Recipe, Stack
from orch.sweep.metrics import RATIOS, Objective, Sought, key
from orch.sweep.real import Bench, metrics_of
from orch.sweep.settings import Settings, Trial, reduced
from orch.sweep.simulated import Simulator
from orch.track.trials import TrialLog

BEST = "best"
LEAST_BLOCKS = 6
_FRESH = 10_000  # added to every seed: what was chosen for its luck with a seed must not have that luck again


def pair(settings: Settings, params: Mapping[str, Any]) -> Recipe | None:
    """Return the recipe of the baseline, as the recipe has it, and the best; None where the best is the baseline.

    Where model, data or cluster were varied, both have those of the best: one gang runs both.
    """
    trial, base = settings.trial(params), settings.recipe
    baseline, chosen = base.baseline, trial.recipe.stacks[trial.stack]
    if chosen.members == baseline.members and chosen.train == baseline.train and trial.recipe.cluster == base.cluster:
        return None
    name = trial.stack if trial.stack != baseline.name else BEST
    stacks: dict[str, Stack] = {baseline.name: baseline, name: replace(chosen, name=name)}
    recipe = trial.recipe if name == trial.stack else _renamed(trial)
    found = reduced(recipe, stacks, baseline.name)
    measure = found.measure
    if all(stack.train.steps is None for stack in stacks.values()):
        measure = measure.model_copy(update={"blocks": max(LEAST_BLOCKS, measure.blocks)})
    seeds = [(seed + _FRESH) % 2**32 for seed in found.seeds]
    return replace(found, spec=found.spec.model_copy(update={"measure": measure, "seeds": seeds}))


def _renamed(trial: Trial) -> Recipe:
    """Return the recipe with the trial's stack under another name too, for a best that is a variant of the baseline."""
    from orch.recipe.tree import mapping

    tree = trial.recipe.tree
    stacks = tree.get("stacks") or tree
    written = stacks.get(trial.stack) or stacks
    entries = {**dict(tree.items()), "stacks": mapping({**dict(stacks.items()), BEST: written}, stacks.where)}
    return replace(trial.recipe, tree=mapping(entries, tree.where))


def measured(bench: Bench, recipe: Recipe, sought: Sought, log: TrialLog) -> dict[str, Any]:
    """Run baseline and best in shuffled blocks of one gang; return both and the gain with its interval."""
    outcome = bench.run(recipe, log)
    found = results(outcome)
    keep_traces(log, outcome.forecast, outcome)
    log.finish(document(outcome, found, mode_of(bench.on)))
    baseline = recipe.baseline.name
    name = next(stack for stack in recipe.stacks if stack != baseline)
    objective = sought.objectives[0]
    values = {stack: metrics_of(outcome, stack, sought) for stack in (baseline, name)}
    return {
        "mode": mode_of(bench.on),
        "over": baseline,
        "values": _keyed(values[name]),
        "baseline": _keyed(values[baseline]),
        "gain": _gain(objective, found[name], outcome, name, values),
        "run_dir": None if log.path is None else str(log.path),
    }


def _gain(
    objective: Objective, result: StackResult, outcome: Outcome, name: str, values: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    baseline, recipe = outcome.recipe.baseline.name, outcome.recipe
    if objective.metric in ("step_time", "throughput", "speedup"):
        batch, base_batch = recipe.batch_per_worker(name), recipe.batch_per_worker(baseline)
        found = _speedup(result.speedup, batch / base_batch if objective.metric == "throughput" else 1.0)
        return {**found, "text": found["text"] + _unlike(objective, batch, base_batch)}
    best, base = values[name][objective.metric], values[baseline][objective.metric]
    pairs = _by_seed(objective, outcome, name, baseline)
    spread = stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else None
    return {
        "median": objective.gain(best, base), "of": "ratio" if objective.metric in RATIOS else "difference",
        "n": len(pairs), "standard_error": spread, "distinguishable": None if spread is None else fmean(pairs) > 2 * spread,
        "text": _told(objective, best, base, len(pairs)),
    }  # fmt: skip


def _unlike(objective: Objective, batch: int, base: int) -> str:
    """Return what a reader of a ratio of step times must know where the steps are not of the same samples."""
    if batch == base or objective.metric not in ("step_time", "speedup"):
        return ""
    return f"; of steps of {batch} samples a worker over steps of {base}: ask for throughput"


def _speedup(found: Speedup, scale: float) -> dict[str, Any]:
    scaled = replace(
        found,
        median=found.median * scale,
        lo=None if found.lo is None else found.lo * scale,
        hi=None if found.hi is None else found.hi * scale,
        logs=tuple(value + math.log(scale) for value in found.logs),
    )
    return {**scaled.to_json(), "of": "ratio", "text": str(scaled)}


def _by_seed(objective: Objective, outcome: Outcome, name: str, baseline: str) -> Sequence[float]:
    """Return by how much the best is better under each seed, where a seed says so."""
    place = {"val_loss": 1, "val_accuracy": 2}.get(objective.metric)
    if place is None:
        return [0.0]
    pairs = zip(outcome.of(name), outcome.of(baseline), strict=True)
    return [objective.gain(best.judged[-1][place], base.judged[-1][place]) for best, base in pairs]


def _told(objective: Objective, best: float, base: float, seeds: int) -> str:
    if objective.metric in RATIOS:
        return f"{objective.gain(best, base):.2f}x"
    return f"{objective.metric} {best:.4g} against {base:.4g}, {seeds} fresh seed{'s' * (seeds != 1)}"


def simulated(settings: Settings, simulator: Simulator, params: Mapping[str, Any], sought: Sought) -> dict[str, Any]:
    """Return the predictions of baseline and best beside each other: a prediction has no blocks to be lucky in."""
    objective, base = sought.objectives[0], settings.recipe
    trial, plain = settings.trial(params), Trial(base, base.baseline.name)
    best, baseline = simulator.values(trial), simulator.values(plain)
    batch, base_batch = (one.recipe.batch_per_worker(one.stack) for one in (trial, plain))
    gain = objective.gain(best[objective.metric], baseline[objective.metric])
    return {
        "mode": "simulated", "over": base.baseline.name, "values": _keyed(best), "baseline": _keyed(baseline),
        "gain": {"median": gain, "of": "ratio",
                 "text": f"{gain:.2f}x (simulated){_unlike(objective, batch, base_batch)}"},
        "run_dir": None,
    }  # fmt: skip


def _keyed(values: Mapping[str, float]) -> dict[str, float]:
    return {key(name): value for name, value in values.items()}
