"""A real trial: the trial's own recipe, run by the same code as `orch run`, on workers that stay warm between trials.

No worker knows of the sweep. A block of steps is one call of the gang; between two calls no rank is in a step, so that
is where a trial is ended early: the driver asks the pruner and does not call again. That is the broadcast at a step
boundary, and no rank can be left behind in a collective.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from orch.errors import RunError
from orch.experiment.execute import Execution
from orch.experiment.invoke import open_gang, refuse
from orch.experiment.known import Known
from orch.experiment.outcome import Outcome, Trained, mode_of
from orch.experiment.quality import smoothed
from orch.experiment.results import document, results
from orch.experiment.show import Quiet
from orch.gang import Gang
from orch.gang.system import killed_for_memory
from orch.recipe import Recipe
from orch.sweep.driver import Found, PrunedError
from orch.sweep.metrics import InfeasibleError, Sought
from orch.sweep.pruning import Pruning
from orch.sweep.settings import Trial, reduced
from orch.sweep.study import Ticket
from orch.track.trials import TrialLog


@dataclass
class Bench:
    """Runs the trials of a sweep on `on`. `root` is the sweep's run directory, None keeps nothing."""

    on: str
    sought: Sought
    root: Path | None
    pruning: Pruning
    exclusive: bool = True
    _known: dict[tuple[object, ...], Known] = field(default_factory=dict)
    _alone: threading.Lock = field(default_factory=threading.Lock)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _gangs: dict[int, Gang] = field(default_factory=dict)
    _hosts: dict[int, set[str]] = field(default_factory=dict)
    _contended: set[int] = field(default_factory=set)

    def __call__(self, ticket: Ticket, trial: Trial) -> Found:
        """Run one trial and return its metrics. Raises InfeasibleError, PrunedError, OrchError, RunError."""
        recipe = self.recipe_of(trial)
        refuse(recipe)
        log = TrialLog(None if self.root is None else self.root / "trials" / str(ticket.number))

        def after_block(trained: Trained) -> None:
            if trained.stack == trial.stack:
                self._prune(ticket, trained, recipe)

        with self._alone if self.exclusive else nullcontext():
            outcome = self.run(recipe, log, after_block, ticket.number)
        found = document(outcome, results(outcome), mode_of(self.on))
        log.finish(found)
        path = None if log.path is None else str(log.path)
        return Found(metrics_of(outcome, trial.stack, self.sought), path, ticket.number in self._contended)

    def recipe_of(self, trial: Trial) -> Recipe:
        """Return the recipe of a trial alone; with the baseline beside it where the gain over that is sought."""
        stacks = trial.recipe.stacks
        baseline = trial.recipe.baseline.name if "speedup" in self.sought.metrics else trial.stack
        return reduced(trial.recipe, {name: stacks[name] for name in dict.fromkeys((baseline, trial.stack))}, baseline)

    def run(
        self, recipe: Recipe, log: TrialLog, after_block: Callable[[Trained], None] | None = None, number: int = -1
    ) -> Outcome:
        """Run a recipe on warm workers. Raises what the run raises; out of memory, and a loss that is no number, as
        InfeasibleError."""
        log.write("recipe.yaml", json.dumps(recipe.resolved(), indent=1, default=str) + "\n")
        log.write("run.json", _facts(recipe, mode_of(self.on), "" if self.root is None else self.root.name))
        killed = killed_for_memory()
        with (
            open_gang(recipe, self.on, None if log.path is None else log.path / "logs") as gang,
            self._held(number, gang),
        ):
            show, known = _Hosts(self, number), self._warm(recipe) if number >= 0 else None
            execution = show.execution = Execution(recipe, gang, log, show, known, after_block)
            try:
                return execution.all()
            except PrunedError:
                execution.abandon()
                raise
            except RunError as error:
                if error.code == "E701" and killed_for_memory() > killed:
                    raise InfeasibleError(f"out of memory: {error}") from None
                if error.code == "E663":
                    raise InfeasibleError(error.message) from None
                raise
            finally:
                log.close()

    def abort(self) -> None:
        """End the workers of every trial that runs, from any thread."""
        with self._lock:
            gangs = list(self._gangs.values())
        for gang in gangs:
            stop = getattr(gang, "abort", None)
            if stop is not None:
                with contextlib.suppress(OSError):
                    stop()

    def _warm(self, recipe: Recipe) -> Known:
        """Return what warm-ups on workers of this kind have measured."""
        key = (recipe.cluster.world_size, recipe.cluster.nodes, recipe.cluster.devices_per_node)
        with self._lock:
            return self._known.setdefault(key, Known())

    def _prune(self, ticket: Ticket, trained: Trained, recipe: Recipe) -> None:
        step = len(trained.block_times_s)
        values = [course_of(trained, objective.metric, recipe) for objective in self.sought.objectives]
        if self.pruning.ends(ticket, step, values):
            raise PrunedError(f"after block {step} of {recipe.measure.blocks}")

    @contextmanager
    def _held(self, number: int, gang: Gang) -> Iterator[None]:
        with self._lock:
            self._gangs[id(gang)] = gang
        try:
            yield
        finally:
            with self._lock:
                del self._gangs[id(gang)]
                self._hosts.pop(number, None)

    def _meet(self, number: int, workers: list[dict[str, Any]]) -> None:
        """Tag trials that ran on one machine at the same time."""
        hosts = {str(worker["host"]) for worker in workers}
        with self._lock:
            for other, theirs in self._hosts.items():
                if other != number and hosts & theirs:
                    self._contended |= {number, other}
            if hosts:
                self._hosts[number] = hosts


class _Hosts(Quiet):
    """Says nothing, and lets the bench know of the machines as soon as the workers have told them."""

    def __init__(self, bench: Bench, number: int) -> None:
        self._bench = bench
        self._number = number
        self.execution: Execution | None = None

    def begin(self, steps: int) -> None:
        """Training begins: the workers are known by now."""
        if self.execution is not None:
            self._bench._meet(self._number, self.execution.workers)


def _facts(recipe: Recipe, mode: str, sweep: str) -> dict[str, Any]:
    """Return what makes a trial's folder a run that can be compared and reported; `sweep` is the id of the sweep's run."""
    return {
        "id": sweep, "recipe": recipe.name, "mode": mode, "stacks": {name: name for name in recipe.stacks},
        "seeds": list(recipe.seeds), "baseline": recipe.baseline.name,
    }  # fmt: skip


def course_of(trained: Trained, metric: str, recipe: Recipe) -> float:
    """Return a metric of `pruning.COURSE` after the blocks so far."""
    if metric in ("step_time", "throughput"):
        seconds = median(trained.block_times_s)
        samples = recipe.layout.readers * recipe.batch_per_worker(trained.stack)
        return seconds if metric == "step_time" else samples / seconds
    if metric == "loss":
        return smoothed(trained.losses)[-1]
    return trained.judged[-1][1 if metric == "val_loss" else 2]


def metrics_of(outcome: Outcome, stack: str, sought: Sought) -> dict[str, float]:
    """Return what is sought of a finished run. Raises InfeasibleError for a target that was not reached."""
    recipe, result = outcome.recipe, results(outcome)[stack]
    runs = outcome.of(stack)
    samples = recipe.layout.readers * recipe.batch_per_worker(stack)
    footprint = result.forecast.footprint
    found: dict[str, float | None] = {
        "step_time": result.step_time_s.median,
        "throughput": samples / result.step_time_s.median,
        "speedup": result.speedup.median,
        "exposed_time": _exposed_s(result.breakdown),
        "payload": result.payload_bytes,
        "wire": footprint.wire,
        "memory": float(footprint.peak_memory),
        "loss": result.quality.last_loss,
        "val_loss": fmean(run.judged[-1][1] for run in runs),
        "val_accuracy": fmean(run.judged[-1][2] for run in runs),
        "time_to_target": result.quality.time_to_target_s,
    }
    values = {name: found[name] for name in sought.metrics}
    for name, value in values.items():
        if value is None:
            why = "the target was not reached" if name == "time_to_target" else "nothing was recorded of it"
            raise InfeasibleError(f"{name}: {why}")
    return {name: float(value) for name, value in values.items() if value is not None}


def _exposed_s(parts: dict[str, float] | None) -> float | None:
    return None if parts is None else sum(seconds for name, seconds in parts.items() if name.startswith("exposed"))
