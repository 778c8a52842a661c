"""One invocation of `orch sweep`: load, refuse early, open the study, run what is missing, keep the results."""

from __future__ import annotations

from orch.errors import OrchError
from orch.experiment.show import Terminal
from orch.recipe import load
from orch.recipe.sweep import LEARNED
from orch.sweep import confirm
from orch.sweep.doing import SIMULATED, Asked, Sweeping, current, drive, finish, opened, placed
from orch.sweep.driver import Found
from orch.sweep.metrics import Sought
from orch.sweep.results import Document
from orch.sweep.settings import Settings, Trial
from orch.sweep.sharing import in_run
from orch.sweep.simulated import Simulator
from orch.sweep.study import Ticket, best_of
from orch.track.tracker import RunLog


def sweep(asked: Asked, terminal: Terminal) -> Document:
    """Do what was asked and return the results. Raises OrchError, RunError; what is finished by then is kept."""
    recipe = load(asked.recipe, asked.overrides)
    if recipe.sweep is None:
        hint = "add sweep: {over: {stack: auto}, minimize: step_time}; orch show sweep explains it"
        raise OrchError(f"{recipe.name} has no section sweep", code="E636", hint=hint)
    settings = Settings(recipe, asked.overrides)
    doing = Sweeping(asked, recipe, recipe.sweep, Sought.of(recipe.sweep), settings, terminal)
    if asked.simulate:
        for name in doing.sought.learned:
            sought = [key for key in ("minimize", "maximize") if name in getattr(recipe.sweep, key)]
            with placed(recipe, *sought, f"constraints.{name}"):
                _refuse_learned(name)
        settings.refuse_impossible()
        return _simulated(doing)
    from orch.sweep.measured import measure

    return measure(doing)


def _refuse_learned(name: str) -> None:
    message = f"a simulation cannot tell {name}: only training can"
    told = ", ".join(other for other in ("step_time", "throughput", "memory") if other not in LEARNED)
    raise OrchError(message, code="E243", hint=f"seek what a plan can tell, such as {told}; or run it with --on")


def _simulated(doing: Sweeping) -> Document:
    """Search in simulation, keep the study as a run."""
    store, cells = opened(doing, SIMULATED, None)
    simulator = Simulator(doing.sought.metrics)

    def evaluate(ticket: Ticket, trial: Trial) -> Found:
        return Found(simulator.values(trial))

    def work(run: RunLog) -> Document:
        run.start()
        more: dict[str, object] = {"stopped": drive(doing, store, cells, evaluate, run)}
        best = best_of(current(store.records()), doing.sought)
        if best is not None and doing.sweep.confirm:
            more["confirmed"] = confirm.simulated(doing.settings, simulator, best.params, doing.sought)
        return finish(doing, store, run, more)

    return in_run(doing, store, SIMULATED, None, work)
