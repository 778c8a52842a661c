"""One invocation of `orch run`: load, refuse early, open the run, make the gang, execute, keep the results."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from orch.errors import OrchError
from orch.experiment.execute import Outcome, execute, refuse
from orch.experiment.results import StackResult, document, results
from orch.experiment.show import Show
from orch.experiment.trace import trace
from orch.gang import make_gang
from orch.recipe import Recipe, load
from orch.track.directory import Facts
from orch.track.settings import runs_root
from orch.track.tracker import RunLog, Tracker


@dataclass(frozen=True)
class Invocation:
    """What the user asked for. `on` None means what the recipe says."""

    recipe: str
    overrides: tuple[str, ...] = ()
    on: str | None = None
    simulate: bool = False
    runs: Path | None = None
    track: bool = True


@dataclass(frozen=True)
class Ended:
    """The figures of a finished run, and the document that `--json` prints."""

    found: dict[str, StackResult]
    document: dict[str, object]


def invoke(asked: Invocation, show: Show) -> Ended | None:
    """Do what was asked; None on a rank that only works for another one. Raises OrchError, RunError."""
    recipe = load(asked.recipe, asked.overrides)
    on = asked.on or recipe.on
    if on is None:
        raise OrchError(
            "nothing says what to run on", code="E605", hint="give --on local, or --simulate to only simulate"
        )
    refuse(recipe)
    tracker = Tracker(runs_root(asked.runs), enabled=asked.track)
    with tracker.run(_facts(recipe, asked, on), recipe.resolved(), recipe.origins()) as run:
        show.stage(f"{recipe.name}: {len(recipe.stacks)} stacks on {recipe.cluster.world_size} workers, {on}")
        log_dir = None if run.path is None else run.path / "logs"
        with make_gang(on, recipe.cluster.world_size, threads=_threads(recipe), log_dir=log_dir) as gang:
            run.start()
            outcome = execute(recipe, gang, run, show)
        return _keep(run, outcome)


def _keep(run: RunLog, outcome: Outcome) -> Ended:
    """Write timelines and results into the run directory, and return them."""
    found = results(outcome)
    for name, stack in outcome.forecast.stacks.items():
        lanes = {f"{name}, predicted": stack.timeline}
        measured = outcome.of(name)[0].timeline
        if measured is not None:
            lanes[f"{name}, rank 0"] = measured
        run.write("trace.json", trace(lanes), stack=name)
    figures = document(outcome, found, "measured")
    run.finish(figures)
    figures |= {"run_dir": str(run.path) if run.path else None, "parent_run_id": run.parent_run_id}
    return Ended(found, figures)


def _facts(recipe: Recipe, asked: Invocation, on: str) -> Facts:
    return Facts(
        recipe.name,
        "simulated" if asked.simulate else "measured",
        tuple(recipe.stacks),
        seeds=recipe.seeds,
        baseline=recipe.baseline.name,
        command=tuple(sys.argv),
        origin=str(recipe.path),
        extra={"on": on},
    )


def _threads(recipe: Recipe) -> int:
    """Share this machine's cores among the workers; each gets at least one."""
    return max(1, len(os.sched_getaffinity(0)) // recipe.cluster.world_size)
