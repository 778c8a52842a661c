"""What simulated and real sweeps share: a study opened or taken up again, its trials driven, its results kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from orch.errors import OrchError, RunError
from orch.experiment.show import Terminal
from orch.recipe import Recipe
from orch.recipe.overrides import is_override
from orch.recipe.sweep import Sweep
from orch.recipe.tree import Node
from orch.sweep import code, figures
from orch.sweep.cells import surroundings
from orch.sweep.deadline import until
from orch.sweep.driver import Cells, Driver, Evaluate
from orch.sweep.metrics import Sought
from orch.sweep.opening import Answer, Surroundings, open_study
from orch.sweep.pruning import refuse_pruner
from orch.sweep.rehearsal import rehearse
from orch.sweep.results import Document, document
from orch.sweep.samplers import Samplers, pruner_of
from orch.sweep.settings import Settings, frame_facts
from orch.sweep.storage import journal_path
from orch.sweep.study import COMPLETE, FAILED, INFEASIBLE, Plan, Record, Store
from orch.sweep.view import View
from orch.track.settings import runs_root
from orch.track.tracker import RunLog

DEFAULT_TRIALS = 40
SIMULATED = "simulated"


@dataclass(frozen=True)
class Asked:
    """What the user asked for; what is None or empty the recipe says."""

    recipe: str
    overrides: tuple[str, ...] = ()
    on: str | None = None
    simulate: bool = False
    trials: int | None = None
    parallel: int | None = None
    only: Literal["failed", "missing"] | None = None
    changed: Answer | None = None
    runs: Path | None = None
    track: bool = True


@dataclass
class Sweeping:
    """A sweep being done: what was asked, what it varies and seeks."""

    asked: Asked
    recipe: Recipe
    sweep: Sweep
    sought: Sought
    settings: Settings
    terminal: Terminal
    notes: list[str] = field(default_factory=list)

    @property
    def root(self) -> Path:
        """The directory of runs."""
        return runs_root(self.asked.runs)

    def name(self, mode: str) -> str:
        """Return the name of the study of a mode: figures of two modes never meet in one."""
        base = self.sweep.study or self.recipe.name
        return base if mode != SIMULATED else f"{base}, simulated"


@contextmanager
def placed(recipe: Recipe, *keys: str) -> Iterator[None]:
    """Have an OrchError that knows no place stand at the first of these keys that the recipe's sweep says; a dot leads in."""
    try:
        yield
    except OrchError as error:
        nodes = (recipe.tree.find(("sweep", *key.split("."))) for key in keys)
        said = (node.place for node in nodes if node is not None)
        place = next((place for place in said if place.line is not None or is_override(place)), None)
        if place is not None and error.code in ("E243", "E632", "E633", "E638"):
            error.at(place)
        raise


def opened(doing: Sweeping, mode: str, on: str | None, here: bool = True) -> tuple[Store, Cells]:
    """Return the study of a mode, begun or taken up again, and the cells it knows."""
    sweep_of, recipe = doing.sweep, doing.recipe
    name = doing.name(mode)
    place = journal_path(doing.root, recipe.name, name)
    with placed(recipe, "sampler"):
        samplers = Samplers(sweep_of.sampler, sweep_of.seed, recipe.space)
    with placed(recipe, "pruner"):
        pruner_of(sweep_of.pruner)
        refuse_pruner(doing.sought, sweep_of.pruner)
    directions = [objective.direction for objective in doing.sought.objectives]
    with placed(recipe, "sampler", "pruner"):
        rehearse(sweep_of.sampler, sweep_of.pruner, recipe.space, directions)
    with placed(recipe, "deadline"):
        until(sweep_of.deadline)
    plan = Plan(name, sweep_of.storage or str(place), recipe.space, doing.sought, samplers, sweep_of.pruner)
    texts = code.sources(recipe)
    around = surroundings(recipe, mode, on, here, texts)
    fixed = {
        "space": {parameter.path: parameter.to_json() for parameter in recipe.space},
        "sought": doing.sought.to_json(),
        "recipe": _base(recipe, mode),
    }
    with placed(recipe, "storage"):
        store = open_study(plan, fixed, Surroundings(around, texts), place, doing.asked.changed, doing.terminal.stage)
    cells = Cells(mode, around, reuse=sweep_of.reuse)
    for record in store.records():
        if record.state == COMPLETE and record.about.cell and record.about.same_as is None:
            cells.known[record.about.cell] = record
    return store, cells


def _base(recipe: Recipe, mode: str) -> dict[str, Any]:
    """Return what of a recipe decides every trial of its sweep."""
    plain = recipe.resolved()
    return {
        **frame_facts(recipe, mode),
        **{key: plain[key] for key in ("train", "when", "baseline") if key in plain},
        "stacks": _said(recipe.tree.find(("stacks",)) or recipe.tree),
    }


def _said(node: Node) -> Any:
    """Return what a recipe says of its stacks: a technique's own default is part of its code, about which the user is asked."""
    if not isinstance(node.value, Mapping):
        return node.plain()
    return {key: _said(child) for key, child in node.items() if not child.where.source.startswith("default of ")}


def drive(
    doing: Sweeping,
    store: Store,
    cells: Cells,
    evaluate: Evaluate,
    run: RunLog | None,
    abort: Callable[[], None] = lambda: None,
    total: int | None = None,
) -> str:
    """Run what the study still lacks of `total`; return why it stopped early, empty when it did not.

    `run` None keeps no line a trial: a search that only precedes another.
    """
    asked, sweep_of = doing.asked, doing.sweep
    first = total is not None
    total = total if total is not None else total_of(doing, store)
    if asked.only == "failed" and not first:
        again(store)
    # What is measured after a search in simulation is what that search chose, and waits already.
    new = first or (asked.only is None and not chosen_first(doing))
    view = View(doing.terminal, doing.sought, total, store.records())

    def watch(record: Record | None, running: int) -> None:
        if run is not None and record is not None:
            run.trial(record.to_json())
        view(record, running)

    driver = Driver(store, doing.settings, cells, evaluate, watch)
    begin, parallel = time.monotonic(), asked.parallel or sweep_of.parallel
    deadline = until(sweep_of.deadline)
    try:
        driver.run(
            total, parallel=parallel, retries=sweep_of.retries,
            until=None if deadline is None else begin + deadline, new=new,
        )  # fmt: skip
    finally:
        doing.terminal.end()
    if driver.slots < parallel:
        doing.terminal.stage(f"there was room for {driver.slots} of {parallel} trials at a time")
    if driver.last_error is not None and driver.stopped.startswith("the same error"):
        message = f"{driver.stopped.partition(' [')[0]}"
        raise RunError(
            f"study {store.plan.name} stopped: {message}", code="E637", hint="mend it; the same line goes on"
        )
    return driver.stopped


def chosen_first(doing: Sweeping) -> bool:
    """Whether a search in simulation chooses the trials of this one."""
    return doing.sweep.simulate_first is not None and not doing.asked.simulate


def confirmed_of(doing: Sweeping) -> int:
    """Return how many of the trials that a search in simulation has chosen are to be measured."""
    assert doing.sweep.simulate_first is not None
    return doing.asked.trials or doing.sweep.simulate_first.confirm


def total_of(doing: Sweeping, store: Store) -> int:
    """Return how many trials the study is to have: what was asked for, at most what a grid has."""
    if chosen_first(doing):
        return store.count()
    wanted = doing.asked.trials or doing.sweep.trials
    size = store.plan.samplers.size
    return min(wanted or size, size) if size is not None else wanted or DEFAULT_TRIALS


def again(store: Store) -> None:
    """Have every failed or infeasible trial run again, in a new one that takes its place."""
    records = store.records()
    replaced = {record.about.replaces for record in records}
    for record in records:
        if record.state in (FAILED, INFEASIBLE) and record.number not in replaced:
            store.enqueue(store.raw_params(record.number), replaces=record.number)


def finish(doing: Sweeping, store: Store, run: RunLog, more: Mapping[str, Any]) -> Document:
    """Keep the results and return them, with where they are."""
    every = store.records()
    records = current(every)
    mode = next((record.about.mode for record in records if record.about.mode), "")
    found = document(store.plan.name, mode, records, doing.sought, {"storage": store.plan.storage, **more})
    for name, text in figures.texts(found).items():
        run.write(f"figures/{name}.csv", text)
    run.finish(found | {"complete": not more.get("stopped")})
    finished = sum(record.finished for record in every)
    return found | {
        "run_dir": str(run.path) if run.path else None, "parent_run_id": run.parent_run_id, "finished": finished,
    }  # fmt: skip


def current(records: Sequence[Record]) -> list[Record]:
    """Return the trials that count: those that no later one replaces."""
    replaced = {record.about.replaces for record in records if record.finished}
    return [record for record in records if record.number not in replaced]
