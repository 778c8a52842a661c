"""The real half of `orch sweep`: trials on workers, what simulation chose first, the best once more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orch.errors import OrchError
from orch.experiment.invoke import HERE, refuse, refuse_gang, torch_loading
from orch.experiment.outcome import mode_of
from orch.recipe.space import STACK
from orch.sweep.agreement import agreement
from orch.sweep.cells import CellStore
from orch.sweep.doing import (
    SIMULATED,
    Sweeping,
    confirmed_of,
    current,
    drive,
    finish,
    opened,
    total_of,
)
from orch.sweep.driver import Found
from orch.sweep.metrics import Sought
from orch.sweep.results import Document
from orch.sweep.settings import Trial
from orch.sweep.sharing import Guest, in_run
from orch.sweep.simulated import Simulator
from orch.sweep.study import Record, Store, Ticket, best_of, feasible
from orch.track.tracker import RunLog
from orch.track.trials import TrialLog

CONFIRMED = "confirmed"


def measure(doing: Sweeping) -> Document:
    """Run a sweep's trials for real and return its results. Raises OrchError before anything is started, RunError."""
    on = doing.asked.on or doing.recipe.on
    if on is None:
        hint = "give --on local, or --simulate to search in simulation"
        raise OrchError("nothing says what to run on", code="E605", hint=hint)
    if on == "torchrun":
        hint = "use --on local, processes, HOST:PORT or ray://HOST:PORT"
        raise OrchError("a sweep makes its own workers, and torchrun has made them already", code="E605", hint=hint)
    refuse(doing.recipe)
    refuse_gang(doing.recipe, on)
    doing.settings.refuse_impossible()
    store, cells = opened(doing, mode_of(on), on, on in HERE)
    cells.store = CellStore(doing.root)

    def work(run: RunLog) -> Document:
        if doing.sweep.simulate_first is not None:
            _simulate_first(doing, store)
        with torch_loading(on):
            return _trials(doing, on, store, cells, run)

    return in_run(doing, store, mode_of(on), on, work)


def _trials(doing: Sweeping, on: str, store: Store, cells: Any, run: RunLog) -> Document:
    from orch.sweep import confirm
    from orch.sweep.pruning import Pruning
    from orch.sweep.real import Bench

    sought, sweep = doing.sought, doing.sweep
    bench = Bench(on, sought, run.path, Pruning(store, sought, sweep.pruner), exclusive=sweep.measure == "exclusive")
    run.start()
    doing.terminal.stage(f"{store.plan.name}: {total_of(doing, store)} trials on {on}")
    more: dict[str, Any] = {"stopped": drive(doing, store, cells, bench, run, bench.abort)}
    records = current(store.records())
    best = best_of(records, sought)
    if sweep.simulate_first is not None:
        more["agreement"] = agreement(records, sought.objectives[0])
    # Where others are still at work, whoever leaves last measures the best again.
    ends = not isinstance(run, Guest) and not more["stopped"] and doing.asked.only is None
    if best is not None and sweep.confirm and ends:
        kept, recipe = store.kept(CONFIRMED), confirm.pair(doing.settings, best.params)
        if kept is not None and kept["number"] == best.number:
            more[CONFIRMED] = kept["found"]
        elif recipe is not None:
            doing.terminal.stage(f"measuring trial {best.number} again, in fresh blocks beside {recipe.baseline.name}")
            log = TrialLog(None if run.path is None else run.path / "trials" / CONFIRMED)
            more[CONFIRMED] = confirm.measured(bench, recipe, sought, log)
            store.keep(CONFIRMED, {"number": best.number, "found": more[CONFIRMED]})
    return finish(doing, store, run, more)


def _simulate_first(doing: Sweeping, store: Store) -> None:
    """Search in simulation, and have the best settings wait in `store` with what was predicted of them."""
    first = doing.sweep.simulate_first
    assert first is not None
    predictions, cells = opened(doing, SIMULATED, None)
    simulator = Simulator(doing.sought.metrics)

    def evaluate(ticket: Ticket, trial: Trial) -> Found:
        return Found(simulator.values(trial))

    doing.terminal.stage(f"searching in simulation first: {first.trials} trials")
    drive(doing, predictions, cells, evaluate, None, total=first.trials)
    fit = [record for record in feasible(predictions.records(), doing.sought) if record.about.same_as is None]
    known = store.proposed()
    for record in apart(best_first(fit, doing.sought))[: confirmed_of(doing)]:
        params = predictions.raw_params(record.number)
        if params not in known and store.count() < confirmed_of(doing):
            store.enqueue(params, predicted=dict(record.about.values))


def apart(records: Sequence[Record]) -> list[Record]:
    """Return records without those of which all that is predicted equals an earlier one of the same stack: their plans have
    come out alike, and one measurement tells of both.
    """
    found: dict[object, Record] = {}
    for record in records:
        found.setdefault((record.params[STACK], *sorted(record.about.values.items())), record)
    return list(found.values())


def best_first(records: Sequence[Record], sought: Sought) -> list[Record]:
    """Return records, the best first; with several objectives those that no other dominates, then of the others those."""
    first, left, found = sought.objectives[0], list(records), list[Record]()
    while left:
        points = [sought.of_values(record.about.values) for record in left]
        front = set(sought.front(points) if len(sought.objectives) > 1 else range(len(left)))
        chosen = [record for place, record in enumerate(left) if place in front]
        found += sorted(chosen, key=lambda record: (first.loss(record.about.values[first.metric]), record.number))
        left = [record for place, record in enumerate(left) if place not in front]
    return found
