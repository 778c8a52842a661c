"""Really run a recipe: one gang, every stack in shuffled blocks, each figure beside its prediction.

The driver owns the run; workers only compute and report. What is measured in the run's own warm-up (layer times, links)
is what its predictions rest on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from orch.errors import OrchError, RunError
from orch.experiment.predict import Forecast, Inputs, predict
from orch.experiment.quality import block_time_s
from orch.experiment.show import Show
from orch.experiment.statistics import block_orders
from orch.gang import Gang
from orch.models.profile import Profile
from orch.plan import to_json
from orch.plan.timeline import Timeline
from orch.recipe import Recipe
from orch.runtime import session
from orch.runtime.observe import Observation, merge
from orch.runtime.session import Block, Progressed, StackJob, Subject
from orch.track.steps import Step, Value
from orch.track.tracker import RunLog


@dataclass
class Trained:
    """What one stack did under one seed: per step its loss and seconds, per block its step time, and its curves.

    `clock_s` [steps] is the stack's own clock at the end of each step; `judged` holds (clock_s, loss, accuracy) on
    held-out data before the first step and after every block.
    """

    stack: str
    seed: int
    losses: list[float] = field(default_factory=list)
    clock_s: list[float] = field(default_factory=list)
    block_times_s: list[float] = field(default_factory=list)
    judged: list[tuple[float, float, float]] = field(default_factory=list)
    payload_bytes: list[float] = field(default_factory=list)
    timeline: Timeline | None = None


@dataclass(frozen=True)
class Outcome:
    """Everything a run found out."""

    recipe: Recipe
    forecast: Forecast
    trained: tuple[Trained, ...]
    notes: tuple[str, ...]

    def of(self, stack: str) -> list[Trained]:
        """Return the trainings of one stack, by seed."""
        return [trained for trained in self.trained if trained.stack == stack]


def execute(recipe: Recipe, gang: Gang, run: RunLog, show: Show) -> Outcome:
    """Run every stack of `recipe` on `gang` and return what was found. RunError names the stack that failed."""
    return _Execution(recipe, gang, run, show).all()


def refuse(recipe: Recipe) -> None:
    """Raise OrchError for a recipe that can be planned but not run, before anything is started."""
    if recipe.data is None:
        raise OrchError(
            "the recipe names no data, so it can be planned but not run", code="E604", hint="add data: (orch list data)"
        )
    if not recipe.model.runs:
        raise OrchError(
            f"model {recipe.model.name} has only a profile: it can be planned, not run",
            code="E604",
            hint="models that run: orch list models",
        )
    for stack in recipe.stacks.values():
        if stack.train.precision == "fp16":
            message = f"stack {stack.name}: fp16 training needs loss scaling, which orch does not have"
            raise OrchError(message, code="E604", hint="use precision: bf16")


class _Execution:
    """The driver's side of one run."""

    def __init__(self, recipe: Recipe, gang: Gang, run: RunLog, show: Show) -> None:
        self._recipe = recipe
        self._gang = gang
        self._run = run
        self._show = show
        self._subjects = {name: _subject(recipe, name) for name in recipe.stacks}
        self._done = 0

    def all(self) -> Outcome:
        recipe = self._recipe
        self._show.stage(f"{self._gang.size} workers ready ({self._gang.kind}); preparing model and data")
        workers = self._gang.call(session.prepare, self._subjects[recipe.baseline.name])
        self._show.stage("measuring layer times and links")
        inputs = self._measure()
        self._run.environment(
            workers=workers, seeds=list(recipe.seeds), links=str(inputs.cluster.links), notes=list(self._gang.notes)
        )
        forecast = predict(recipe, inputs)
        for name, stack in forecast.stacks.items():
            self._run.write("plan.json", to_json(stack.plan), stack=name)
        measure = recipe.measure
        self._show.begin(len(recipe.seeds) * len(recipe.stacks) * (measure.warmup + measure.blocks * measure.steps))
        trained = [result for seed in recipe.seeds for result in self._train(seed, forecast)]
        self._show.end()
        return Outcome(recipe, forecast, tuple(trained), self._gang.notes)

    # -- the warm-up ------------------------------------------------------------------------------------------------------

    def _measure(self) -> Inputs:
        """Measure layer times, for each kind of training that stacks differ in, and links."""
        profiles: dict[str, Profile] = {}
        update_s: dict[str, float | None] = {}
        seen: dict[tuple[object, ...], list[Observation]] = {}
        for name, subject in self._subjects.items():
            key = (subject.batch, subject.precision, str(subject.optimizer))
            if key not in seen:
                seen[key] = self._gang.call(session.watch, subject, self._recipe.seeds[0])
            profiles[name] = merge([observation.profile for observation in seen[key]])
            update_s[name] = fmean(observation.update_s for observation in seen[key])
        return Inputs(self._recipe.cluster, profiles, update_s)

    # -- training ---------------------------------------------------------------------------------------------------------

    def _train(self, seed: int, forecast: Forecast) -> list[Trained]:
        """Train every stack from `seed`, in blocks of a balanced shuffle."""
        recipe, measure = self._recipe, self._recipe.measure
        results = {name: Trained(name, seed) for name in recipe.stacks}
        for name in recipe.stacks:
            self._in(name, session.load, self._job(name, seed, forecast))
            self._judge(results[name])
        for name in recipe.stacks:
            self._block(results[name], None, measure.warmup, forecast)
        for number, order in enumerate(block_orders(list(recipe.stacks), measure.blocks, seed)):
            for name in order:
                self._block(results[name], number, measure.steps, forecast)
                self._judge(results[name])
        for name in recipe.stacks:
            self._finish(results[name])
        return list(results.values())

    def _job(self, name: str, seed: int, forecast: Forecast) -> StackJob:
        stack = self._recipe.stacks[name]
        config = next((m.config for m in stack.members if m.technique.engine is not None), None)
        return StackJob(name, self._subjects[name], forecast.stacks[name].plan, seed, stack.engine, config)

    def _block(self, trained: Trained, block: int | None, steps: int, forecast: Forecast) -> None:
        """Run one block of a stack and keep what it did; `block` None is the warm-up, which is trained but not timed."""
        if steps == 0:
            return
        ranks: list[Block] = self._in(trained.stack, session.run_block, trained.stack, trained.seed, steps, block=block)
        _refuse_differences(trained.stack, ranks)
        # A step ends when its slowest rank does; the loss of a step is the mean over ranks, whose batches differ.
        times = [max(each) for each in zip(*(rank.step_times_s for rank in ranks), strict=True)]
        losses = [fmean(each) for each in zip(*(rank.losses for rank in ranks), strict=True)]
        first, clock = len(trained.losses), trained.clock_s[-1] if trained.clock_s else 0.0
        lines = []
        for index, (loss, seconds) in enumerate(zip(losses, times, strict=True)):
            clock += seconds
            trained.clock_s.append(clock)
            lines.append(Step(first + index, block, loss, None if block is None else seconds, clock))
        trained.losses.extend(losses)
        self._run.stack(trained.stack, trained.seed).log_steps(lines)
        if block is not None:
            trained.block_times_s.append(block_time_s(times, forecast.stacks[trained.stack].plan.period))
            trained.payload_bytes.append(ranks[0].payload_bytes)
        self._done += steps

    def _judge(self, trained: Trained) -> None:
        figures = self._in(trained.stack, session.evaluate, trained.stack, trained.seed)[0]
        clock, step = (trained.clock_s or [0.0])[-1], len(trained.losses)
        trained.judged.append((clock, figures["loss"], figures["accuracy"]))
        self._run.stack(trained.stack, trained.seed).log_values(
            [Value(step, clock, f"val_{name}", value) for name, value in figures.items()]
        )

    def _finish(self, trained: Trained) -> None:
        """Take the timeline, check that all ranks hold the same parameters, and free the stack."""
        key = (trained.stack, trained.seed)
        trained.timeline = self._in(trained.stack, session.timeline, *key)[0]
        prints = self._in(trained.stack, session.fingerprint, *key)
        odd = [rank for rank, value in enumerate(prints) if value != prints[0]]
        if odd:
            message = f"stack {trained.stack}: after training, rank {odd[0]} holds other parameters than rank 0"
            raise RunError(message, code="E611", hint="the techniques of this stack do not do the same on every rank")
        self._in(trained.stack, session.forget, *key)

    def _in(self, stack: str, function: Any, *args: Any, block: int | None = None) -> list[Any]:
        """Call a function of the session on every rank; a failure names the stack."""
        where = stack if block is None else f"{stack}, block {block + 1} of {self._recipe.measure.blocks}"

        def on_event(rank: int, event: Any) -> None:
            if isinstance(event, Progressed):
                self._show.progress(where, self._done + event.step, event.loss, event.samples_per_s)

        try:
            return self._gang.call(function, *args, on_event=on_event)
        except OrchError as error:
            error.message = f"stack {stack}: {error.message}"
            error.args = (error.message,)
            raise


def _subject(recipe: Recipe, stack: str) -> Subject:
    train = recipe.stacks[stack].train
    assert recipe.data is not None
    optimizer = {train.optimizer.name: train.optimizer.settings}
    return Subject(recipe.model, recipe.data, recipe.batch_per_worker(stack), optimizer, train.precision)


def _refuse_differences(stack: str, ranks: Sequence[Block]) -> None:
    """A run that did not do what its plan says has measured something else: its figures would be about nothing."""
    for rank, block in enumerate(ranks):
        if block.differences:
            more = f" (and {len(block.differences) - 1} more)" if len(block.differences) > 1 else ""
            message = f"stack {stack}: rank {rank} did not run its plan: {block.differences[0]}{more}"
            raise RunError(message, code="E610", hint="report it: the technique or the runtime is at fault")
