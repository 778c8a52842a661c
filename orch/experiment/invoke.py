"""One invocation of `orch run`: load, refuse early, open the run, make the gang, execute, keep the results.

torch is loaded by what executes, and only once workers are on their way; `--simulate` never loads it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orch.cluster.node import Node
from orch.errors import OrchError
from orch.experiment import resume
from orch.experiment.fault_costs import costs
from orch.experiment.figures import figures
from orch.experiment.injection import refuse as refuse_faults
from orch.experiment.outcome import Outcome, mode_of
from orch.experiment.past import Past
from orch.experiment.predict import Forecast, described, plan_stack, predict
from orch.experiment.recovery import Recovery, smaller
from orch.experiment.results import document, results, simulated_document
from orch.experiment.show import Show
from orch.experiment.trace import refuse_place, run_trace, trace, write_trace
from orch.gang import Gang, alike, make_gang, refuse_or_note, serve_other_ranks
from orch.plan import to_json
from orch.recipe import Recipe, load
from orch.track.directory import Facts, RunDirectory
from orch.track.settings import runs_root
from orch.track.tracker import RunLog, Tracker
from orch.units import format_count, format_seconds
from orch.workload.layout import SHARES, SLICES

if TYPE_CHECKING:
    from orch.experiment.execute import Execution

Document = dict[str, Any]
# Ways to reach workers that put all of them on this machine, whatever the cluster file says of nodes.
HERE = ("inline", "processes", "local", "emulate")


_WORKER_IN_THIS_PROCESS = ("inline", "torchrun")


@dataclass(frozen=True)
class Invocation:
    """What the user asked for. `on` None means what the recipe says; `resume` names a run that is to go on, and then the
    recipe may be left to it. `trace` is where the trace of the run goes besides its directory.
    """

    recipe: str | None
    overrides: tuple[str, ...] = ()
    on: str | None = None
    simulate: bool = False
    runs: Path | None = None
    track: bool = True
    resume: str | None = None
    trace: Path | None = None


def invoke(asked: Invocation, show: Show) -> Document | None:
    """Do what was asked and return the results; None on a rank that only works for another. Raises OrchError, RunError.

    A run that fails or is interrupted keeps what all its stacks have finished, and says where it is.
    """
    if asked.on == "torchrun" and not asked.simulate and serve_other_ranks():
        return None
    if asked.trace is not None:
        refuse_place(asked.trace)
    past = None
    if asked.resume is not None:
        past = resume.find(runs_root(asked.runs), asked.resume, asked.recipe)
        asked = _as_begun(asked, past)
    if asked.recipe is None:
        raise OrchError("no recipe is named", code="E001", hint="orch run RECIPE; orch list recipes")
    recipe = load(asked.recipe, asked.overrides)
    if past is not None:
        resume.refuse_changed(past, recipe)
    if asked.simulate:
        return _simulate(recipe, asked)
    on = asked.on or recipe.on
    if on is None:
        hint = "give --on local, or --simulate to only simulate"
        raise OrchError("nothing says what to run on", code="E605", hint=hint)
    refuse(recipe)
    refuse_gang(recipe, on)
    refuse_faults(recipe, on)
    if on == "torchrun" and serve_other_ranks():
        return None
    path = None
    try:
        with _opened(recipe, asked, on, past) as run:
            path = run.path
            stacks, workers = len(recipe.stacks), recipe.cluster.world_size
            show.stage(f"{recipe.name}: {format_count(stacks, 'stack')} on {format_count(workers, 'worker')}, {on}")
            return _run(recipe, on, run, show, None if past is None else Past(past), asked.trace)
    except BaseException:
        show.end()
        if path is not None and path.exists():  # what the user has to correct leaves no run
            show.stage(f"orch run --resume {path.name} goes on with it")
            show.stage(f"run: {path} (not finished; what was done is kept)")
        raise


def _opened(recipe: Recipe, asked: Invocation, on: str, past: RunDirectory | None) -> AbstractContextManager[RunLog]:
    if past is not None:
        return _tracker(asked).take_up(past)
    return _tracker(asked).run(_facts(recipe, asked, on), recipe.resolved(), recipe.origins())


def _as_begun(asked: Invocation, past: RunDirectory) -> Invocation:
    """Return what a run that is to go on was asked for when it began."""
    if asked.simulate or not asked.track:
        other = "--simulate" if asked.simulate else "--no-track"
        raise OrchError(f"--resume goes on with a run that was kept; {other} makes none", code="E001")
    origin, overrides, on = resume.asked_for(past)
    if asked.on is not None and (on is None or not alike(asked.on, on)):
        raise OrchError(f"run {past.id} began with --on {on}", code="E820", hint=f"{asked.on} would be another run")
    recipe = asked.recipe or (origin if Path(origin).exists() else str(past.path / "recipe.yaml"))
    return replace(asked, recipe=recipe, overrides=asked.overrides or overrides, on=asked.on or on)


def _refuse_layout(recipe: Recipe) -> None:
    """Refuse what can be shared out in plans only: shares of tokens, most models' attention, and rows that are gathered for
    experts cut into slices; rows that go to all slices at once run.
    """
    layout = recipe.layout
    if layout.tensor > 1 and (layout.tokens == SHARES or not recipe.model.shared):
        what = "shares of tokens outside attention" if layout.tokens == SHARES else f"attention of {recipe.model.name}"
        hint = "parallel.tokens=whole with char-moe or gpt2-moe runs; or parallel.tensor=1, or --simulate"
        raise OrchError(f"{what} can be shared out in a plan, not when it runs", code="E604", hint=hint)
    if layout.slices == 1:
        return
    inputs = described(recipe)
    for name in recipe.stacks:
        plan, _ = plan_stack(recipe, name, inputs, timed=False)
        if any(task.op.kind == "gather_rows" and task.group == SLICES for step in plan.steps for task in step):
            message = f"stack {name} gathers rows for experts that are cut into slices: it can be planned, not run"
            hint = "add parm: {schedule: s1}, or parallel.slices=1, or --simulate"
            raise OrchError(message, code="E604", hint=hint)


def refuse(recipe: Recipe) -> None:
    """Raise OrchError for a recipe that can be planned but not run, before anything is started."""
    if recipe.data is None:
        message = "the recipe names no data, so it can be planned but not run"
        raise OrchError(message, code="E604", hint="add data: (orch list data), or --simulate")
    if not recipe.model.runs:
        message = f"model {recipe.model.name} has only a profile: it can be planned, not run"
        raise OrchError(message, code="E604", hint="models that run: orch list models; or --simulate")
    _refuse_layout(recipe)
    for stack in recipe.stacks.values():
        for member in stack.members:
            if (why := member.technique.planned_only) is not None and (reason := why(member.config)):
                message = f"stack {stack.name} can be planned, not run: {reason} ({member.name})"
                raise OrchError(message, code="E604", hint="leave these knobs at their defaults, or --simulate")
        if stack.train.precision == "fp16":
            message = f"stack {stack.name}: fp16 training needs loss scaling, which orch does not have"
            raise OrchError(message, code="E604", hint="use precision: bf16")
        steps, total = stack.train.steps, recipe.measure.total
        if steps is not None and steps < total:
            message = f"stack {stack.name}: train.steps {steps} is less than the {total} steps that measure takes"
            hint = f"give at least {total}, or fewer measure.blocks, measure.steps or measure.warmup"
            raise OrchError(message, code="E604", hint=hint)
    if find_spec("torch") is None:
        raise OrchError("training needs torch", code="E003", hint="pip install 'orch[run]', or --simulate")


def _simulate(recipe: Recipe, asked: Invocation) -> Document:
    """Predict every stack and keep that as a run."""
    with _tracker(asked).run(_facts(recipe, asked, None), recipe.resolved(), recipe.origins()) as run:
        run.start()
        forecast = predict(recipe)
        _keep_plans(run, forecast)
        keep_traces(run, forecast, None)
        if asked.trace is not None:
            write_trace(asked.trace, trace({name: stack.timeline for name, stack in forecast.stacks.items()}))
        found = simulated_document(forecast) | ({"faults": costs(recipe, forecast)} if recipe.faults else {})
        _keep_figures(run, figures(found, forecast, None))
        return _finish(run, found)


def open_gang(recipe: Recipe, on: str, log_dir: Path | None) -> Gang:
    """Return the workers that the recipe's cluster asks for, reached by `on`: warm ones if there are any."""
    return make_gang(on, recipe.cluster.world_size, **gang_settings(recipe, on, log_dir))


def refuse_gang(recipe: Recipe, on: str) -> tuple[str, ...]:
    """Return what the user may want to know of such workers. Raises OrchError where they can never be had."""
    return refuse_or_note(on, recipe.cluster.world_size, _device(recipe), _nodes(recipe, on))


def _run(recipe: Recipe, on: str, run: RunLog, show: Show, past: Past | None, place: Path | None) -> Document:
    log_dir = None if run.path is None else run.path / "logs"

    def open_on(one: Recipe) -> Gang:
        return open_gang(one, on, log_dir)

    run.write(resume.CODE, resume.code_of(recipe))
    with torch_loading(on), ExitStack() as gangs:
        gang = gangs.enter_context(open_on(recipe))
        from orch.experiment.execute import Execution

        for note in gang.notes:
            show.stage(note)
        execution = Execution(recipe, gang, run, show)
        if past is not None:
            execution.go_on_from(past)
        try:
            retries, fewer = recipe.spec.recover.retries, smaller(recipe, open_on)
            outcome = Recovery(partial(open_on, recipe), gangs, retries, show, fewer).through(execution)
        except BaseException as error:
            _keep_part(run, execution, on, error)
            raise
    keep_traces(run, outcome.forecast, outcome)
    _keep_run_trace(run, outcome, place, show)
    found = document(outcome, results(outcome), mode_of(on))
    if recipe.faults:
        found["faults"] = costs(recipe, outcome.forecast, outcome.trained)
    _keep_figures(run, figures(found, outcome.forecast, outcome))
    return _finish(run, found)


def gang_settings(recipe: Recipe, on: str, log_dir: Path | None) -> dict[str, Any]:
    """Return what `make_gang` is told of the workers of a recipe, beside how many."""
    size, per_node = recipe.cluster.world_size, recipe.cluster.devices_per_node
    threads = _threads(size if on in HERE else per_node)
    return {
        "threads": threads,
        "device": _device(recipe),
        "log_dir": log_dir,
        "per_node": per_node,
        "nodes": _nodes(recipe, on),
        "labels": recipe.cluster.labels,
    }


@contextmanager
def torch_loading(on: str) -> Iterator[None]:
    """Load torch, which takes seconds, while the workers load theirs. Left early, wait for it: it cannot be stopped, and
    an interpreter that ends under it dies with a traceback, or aborts.

    Where a worker lives in this process it loads torch itself, so that comes first: two threads that load torch at once
    meet in its circular imports, and one of them gets half a module.
    """

    def load() -> None:
        with suppress(Exception):  # whoever needs it imports it again, and is told
            import_module("orch.experiment.execute")

    loading = threading.Thread(target=load, daemon=True)
    loading.start()
    if on in _WORKER_IN_THIS_PROCESS:
        loading.join()
    try:
        yield
    finally:
        loading.join()


def _keep_part(run: RunLog, execution: Execution, on: str, error: BaseException) -> None:
    """Keep the figures of the blocks that all stacks finished before `error`, marked as not the whole."""
    outcome = None if execution.outcome is None else execution.outcome.comparable()
    if outcome is not None:
        found = document(outcome, results(outcome), mode_of(on))
        reason = str(error) or type(error).__name__
        _keep_figures(run, figures(found, outcome.forecast, outcome))
        run.write("results.json", found | {"complete": False, "notes": [*outcome.notes, f"not finished: {reason}"]})


def _keep_plans(run: RunLog, forecast: Forecast) -> None:
    for name, stack in forecast.stacks.items():
        run.write("plan.json", to_json(stack.plan), stack=name)


def keep_traces(run: RunLog, forecast: Forecast, outcome: Outcome | None) -> None:
    """Write each stack's timelines: predicted, and as rank 0 recorded it."""
    for name, stack in forecast.stacks.items():
        lanes = {f"{name}, predicted": stack.timeline}
        measured = None if outcome is None else outcome.of(name)[0].timeline
        if measured is not None:
            lanes[f"{name}, rank 0"] = measured
        run.write("trace.json", trace(lanes), stack=name)


def _keep_run_trace(run: RunLog, outcome: Outcome, place: Path | None, show: Show) -> None:
    """Write the trace of all ranks beside what was predicted, and say how far their clocks may be apart."""
    error_s = outcome.clock_error_s
    made = None if run.path is None and place is None else run_trace(outcome)
    if made is None or error_s is None:
        return
    run.write("trace.json", made)
    if place is not None:
        write_trace(place, made)
    path = place or (None if run.path is None else run.path / "trace.json")
    if path is not None:
        clocks = f"their clocks within {format_seconds(error_s)}" if error_s else "which share one clock"
        show.stage(f"trace of all ranks, {clocks}, beside the predictions: {path}")


def _keep_figures(run: RunLog, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        run.write(f"figures/{name}.csv", text)


def _finish(run: RunLog, found: Mapping[str, Any]) -> Document:
    run.finish(dict(found) | {"complete": True})
    run_dir = str(run.path) if run.path else None
    return dict(found) | {"complete": True, "run_dir": run_dir, "parent_run_id": run.parent_run_id}


def _tracker(asked: Invocation) -> Tracker:
    return Tracker(runs_root(asked.runs), enabled=asked.track)


def _facts(recipe: Recipe, asked: Invocation, on: str | None) -> Facts:
    return Facts(
        recipe.name,
        "simulated" if on is None else mode_of(on),
        tuple(recipe.stacks),
        seeds=recipe.seeds,
        baseline=recipe.baseline.name,
        command=tuple(sys.argv),
        origin=str(recipe.path),
        extra={} if on is None else {"on": on, "overrides": asked.overrides},
    )


def _device(recipe: Recipe) -> str:
    return "cuda" if recipe.cluster.device.kind == "gpu" else "cpu"


def _nodes(recipe: Recipe, on: str) -> tuple[Node, ...]:
    """Return the nodes to emulate; none where real ones, or this machine as it is, do the work."""
    return tuple(map(recipe.cluster.node, range(recipe.cluster.nodes))) if on == "emulate" else ()


def _threads(workers: int) -> int:
    """Share a machine's cores, taken to be as many as this one has, among its workers; each gets at least one."""
    return max(1, len(os.sched_getaffinity(0)) // workers)
