"""Search stacks and knobs in simulation, rank them, and say of each gain whether it is more than the prediction's error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from orch.advise.space import Candidate, combined, neighbours, own, singles, travelling
from orch.cluster import Cluster
from orch.errors import OrchError
from orch.experiment.predict import Forecast, Inputs, StackForecast, described, footprint, plan_stack, predict
from orch.experiment.what_if import bit_per_s, explore, resized
from orch.plan import Plan
from orch.recipe import Recipe
from orch.report.stored import StoredRun
from orch.simulate import simulate
from orch.simulate.variants import obstacle, step_times
from orch.stack import untested_pairs
from orch.track import directory

VARIED = 3  # exact and lossy stacks each, whose knobs are tried
SHOWN = 5  # exact and lossy stacks each, besides the recipe's own
FASTER = 10.0
SIZES = (8, 64, 512)
LOOKED_BACK = 20  # measured runs that are asked how wrong predictions were, the newest: reading one takes some 30 ms
FLOOR = 0.02  # the least error of a predicted gain: what a model of costs leaves out is worth about as much (our guess)
WORTH = 0.03  # of the step time that moved knobs must save to be shown
ASKED_AGAIN = 4  # stacks whose gain is asked for on other clusters


Trial = tuple[Candidate, Plan, float]  # with its predicted step time [s]


@dataclass(frozen=True)
class Gain:
    """Predicted step time of the baseline over that of the stack, and where it may lie: over the bands of the inputs, and
    as wrong as predicted gains have been before.
    """

    median: float
    lo: float
    hi: float

    @property
    def less(self) -> float:
        """How much less it may be, as a share of it: the error that decides whether it is sold."""
        return 1.0 - self.lo / self.median

    @property
    def more(self) -> float:
        """How much more it may be, as a share of it."""
        return self.hi / self.median - 1.0

    @property
    def sold(self) -> bool:
        """Whether it is a gain even at the low end."""
        return self.lo > 1.0


@dataclass(frozen=True)
class Advised:
    """One stack with what it would bring and what it costs; bytes are a worker's."""

    candidate: Candidate
    gain: Gain
    step_time_s: float
    exposed_s: float
    extra_memory_bytes: int
    fits: bool
    risks: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the stack."""
        return self.candidate.name

    @property
    def lossless(self) -> bool:
        """Whether it equals plain S-SGD."""
        return self.candidate.stack.lossless

    @property
    def verdict(self) -> str:
        """What to make of the gain."""
        if not self.fits:
            return "does not fit into memory"
        if self.gain.sold:
            return "faster"
        return "slower" if self.gain.hi < 1.0 else "inside the error"


@dataclass(frozen=True)
class Elsewhere:
    """The gain of a stack on another cluster; None where it cannot be said."""

    stack: str
    gains: dict[str, float | None]


@dataclass(frozen=True)
class Advice:
    """All of it. `past_error` is how wrong predicted gains were in measured runs of this recipe, None without any."""

    recipe: Recipe
    baseline: StackForecast
    ceiling_speedup: float
    ranked: tuple[Advised, ...]
    elsewhere: tuple[Elsewhere, ...]
    tried: int
    past_error: float | None
    past_runs: int

    @property
    def best(self) -> Advised | None:
        """The stack to try first: the fastest exact one whose gain is beyond the error, or the fastest lossy one."""
        sold = [one for one in self.ranked if one.verdict == "faster"]
        exact = [one for one in sold if one.lossless]
        return next(iter([*exact, *sold]), None)


def advise(recipe: Recipe, root: Path | None = None) -> Advice:
    """Return what to try for `recipe`. Measured runs of it under `root` tell how wrong predicted gains have been."""
    inputs = described(recipe)
    baseline = recipe.baseline.name
    tried: dict[str, Trial] = {}
    _try(recipe, inputs, own(recipe), tried)
    if baseline not in tried:
        predict(recipe, inputs)  # raises what keeps the baseline from being planned
    useful = _try(recipe, inputs, singles(recipe), tried)
    _try(recipe, inputs, combined(recipe, useful), tried)
    for one in _fastest(tried, baseline):
        _try(recipe, inputs, travelling(recipe, one, dict.fromkeys(useful)), tried)
    _try(recipe, inputs, (other for one in _fastest(tried, baseline) for other in neighbours(recipe, one)), tried)
    chosen = _chosen(tried, baseline)
    found = predict(_with(recipe, []), inputs)
    past = past_errors(root, recipe) if root is not None else []
    error = median(past) if past else None
    base = next(plan for candidate, plan, _ in chosen if candidate.name == baseline)
    advised = [
        _advised(recipe, inputs, trial, found, _gain(base, trial[1], inputs.cluster, max(error or 0.0, FLOOR)))
        for trial in chosen
        if trial[0].name != baseline
    ]
    advised.sort(key=lambda one: (not one.fits, -one.gain.median, not one.lossless))
    elsewhere = tuple(_elsewhere(recipe, inputs, [one.candidate for one in advised[:ASKED_AGAIN]]))
    return Advice(
        recipe, found.stacks[baseline], found.ceiling_speedup, tuple(advised), elsewhere, len(tried), error, len(past)
    )


def _fastest(tried: Mapping[str, Trial], baseline: str) -> list[Candidate]:
    """Return the fastest exact stacks, and the fastest lossy ones."""
    ranked = [one[0] for one in sorted(tried.values(), key=lambda one: one[2]) if one[0].name != baseline]
    exact, lossy = ([one for one in ranked if one.stack.lossless is kind] for kind in (True, False))
    return [*exact[:VARIED], *lossy[:VARIED]]


def _try(recipe: Recipe, inputs: Inputs, found: Iterable[Candidate], tried: dict[str, Trial]) -> list[str]:
    """Plan and simulate each candidate; return the given techniques that changed a plan.

    Dropped are what cannot be planned here, what has a technique that changes nothing (a schedule of experts, for a model
    without), and what gives a plan that is there already.
    """
    plans: dict[tuple[int, int], list[Plan]] = {}
    for _, plan, _ in tried.values():
        plans.setdefault(_size(plan), []).append(plan)
    useful: list[str] = []
    for candidate in found:
        if candidate.name in tried:
            useful += [member.name for member in candidate.stack.members if member.given]
            continue
        at = _inputs_for(inputs, recipe, [candidate])
        try:
            plan, reports = plan_stack(_with(recipe, [candidate]), candidate.name, at, timed=False)
            seconds = simulate(plan, inputs.cluster).step_time_s
        except OrchError:
            continue
        given = {member.name for member in candidate.stack.members if member.given}
        changed = [report.technique for report in reports if report.changed and report.technique in given]
        useful += changed
        alike = plans.setdefault(_size(plan), [])
        new = all(other.steps != plan.steps for other in alike)
        if candidate.own or (new and len(changed) == len(given)):
            tried[candidate.name] = (candidate, plan, seconds)
            alike.append(plan)
    return list(dict.fromkeys(useful))


def _size(plan: Plan) -> tuple[int, int]:
    """Return what two plans must share to be equal, and is sooner compared."""
    return sum(len(step) for step in plan.steps), sum(task.op.nbytes for step in plan.steps for task in step)


def _with(recipe: Recipe, found: Sequence[Candidate]) -> Recipe:
    """Return `recipe` with these stacks; its baseline stays among them."""
    stacks = {recipe.baseline.name: recipe.baseline} | {one.name: one.stack for one in found}
    return replace(recipe, stacks=stacks)


def _inputs_for(inputs: Inputs, recipe: Recipe, found: Sequence[Candidate]) -> Inputs:
    """Return the inputs with an entry for every stack: a new one is trained as the baseline is."""
    base = recipe.baseline.name
    names = [base, *(one.name for one in found)]
    profiles = {name: inputs.profiles.get(name, inputs.profiles[base]) for name in names}
    return Inputs(inputs.cluster, profiles, {name: inputs.update_s.get(name, inputs.update_s[base]) for name in names})


def _chosen(tried: Mapping[str, Trial], baseline: str) -> list[Trial]:
    """Return the baseline, the user's own stacks, and the fastest others of either kind, each once: with moved knobs
    only where they are worth it.
    """
    ranked = sorted(tried.values(), key=lambda one: one[2])
    mine = [one for one in ranked if one[0].own]
    usual: dict[tuple[str, ...], float] = {}
    for candidate, _, seconds in ranked:
        if not candidate.tuned:
            usual.setdefault(_techniques(candidate), seconds)
    seen = set[tuple[str, ...]]()
    others: list[Trial] = []
    for one in ranked:
        key, (candidate, _, seconds) = _techniques(one[0]), one
        worth = candidate.tuned and seconds < (1 - WORTH) * usual.get(key, math.inf)
        if key not in seen and (worth or not candidate.tuned):
            seen.add(key)
            others += [] if candidate.own else [one]
    mine.sort(key=lambda one: one[0].name != baseline)
    exact, lossy = ([one for one in others if one[0].stack.lossless is kind] for kind in (True, False))
    return [*mine, *exact[:SHOWN], *lossy[:SHOWN]]


def _techniques(candidate: Candidate) -> tuple[str, ...]:
    return candidate.stack.techniques


def _gain(base: Plan, plan: Plan, cluster: Cluster, past_error: float) -> Gain:
    """Simulate both plans at every corner of the inputs' bands: both meet the same cluster there."""
    largest = max((task.op.nbytes for step in base.steps for task in step), default=0)
    bands = cluster.bands(nbytes=largest)
    corners = [(0, 0, 0), *product((-1, 1), repeat=3)]
    factors = [
        np.array([(1.0 + band) ** corner[place] for corner in corners])
        for place, band in enumerate((bands.start_up, bands.per_byte, bands.compute))
    ]
    if obstacle(cluster):
        times = [
            np.array([simulate(one, cluster.scaled(*(f[n] for f in factors))).step_time_s for n in range(len(corners))])
            for one in (base, plan)
        ]
    else:
        times = [step_times(one, cluster.scaled(*factors)) for one in (base, plan)]
    ratios = np.broadcast_to(times[0] / times[1], (len(corners),))
    wrong = 1.0 + past_error
    return Gain(float(ratios[0]), float(ratios.min()) / wrong, float(ratios.max()) * wrong)


def _advised(recipe: Recipe, inputs: Inputs, trial: Trial, found: Forecast, gain: Gain) -> Advised:
    candidate, plan, seconds = trial
    cluster = inputs.cluster
    at = _inputs_for(inputs, recipe, [candidate])
    memory = footprint(_with(recipe, [candidate]), candidate.name, at, plan).peak_memory
    room = cluster.device.memory_bytes
    risks = [f"{left} with {right} was never tested" for left, right in untested_pairs(candidate.stack.members)]
    if candidate.tuned and not candidate.stack.lossless:
        risks.append("knobs away from those that papers use")
    return Advised(
        candidate,
        gain,
        seconds,
        max(0.0, seconds - simulate(plan, cluster.communication_free()).step_time_s),
        memory - found.stacks[found.baseline].footprint.peak_memory,
        room is None or memory <= room,
        tuple(risks),
    )


def _elsewhere(recipe: Recipe, inputs: Inputs, found: Sequence[Candidate]) -> Iterable[Elsewhere]:
    """Yield the gains of a few stacks with a link that is ten times faster, and at other sizes."""
    base = recipe.baseline.name
    full, here = _with(recipe, found), inputs.cluster.world_size
    sizes = [size for size in SIZES if size != here and resized(inputs.cluster, size) is not None]
    at = _inputs_for(inputs, recipe, found)
    cells = explore(full, at, [here], [FASTER]) if bit_per_s(inputs.cluster) else []
    cells += explore(full, at, sizes, [1.0])
    times = {(cell.workers, cell.factor, cell.stack): cell.step_time_s for cell in cells}
    places = {f"link {FASTER:g}x faster": (here, FASTER)} | {f"{size} workers": (size, 1.0) for size in sizes}
    for one in found:
        gains: dict[str, float | None] = {}
        for label, (workers, factor) in places.items():
            before, after = times.get((workers, factor, base)), times.get((workers, factor, one.name))
            gains[label] = before / after if before is not None and after is not None else None
        yield Elsewhere(one.name, gains)


def past_errors(root: Path, recipe: Recipe) -> list[float]:
    """Return how wrong predicted gains were in finished measured runs of the same model: |log| of predicted over measured,
    as a relative error, one a stack that is not the baseline.
    """
    found: list[float] = []
    real = [run for run in map(StoredRun, directory.find_all(root)) if run.facts.get("mode") != "simulated"]
    for run in real[-LOOKED_BACK:]:
        if run.recipe.get("model") != recipe.resolved().get("model"):
            continue
        stacks: Mapping[str, Any] = run.results.get("stacks") or {}
        base = stacks.get(run.baseline)
        for name, one in stacks.items():
            if base is not None and name != run.baseline:
                with suppress(KeyError, TypeError, ValueError, ZeroDivisionError):  # of another version, or damaged
                    predicted = base["predicted_step_time_s"] / one["predicted_step_time_s"]
                    measured = base["step_time_s"]["median"] / one["step_time_s"]["median"]
                    found.append(math.expm1(abs(math.log(predicted / measured))))
    return found
