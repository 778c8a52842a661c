"""Really run a recipe: one gang, every stack in shuffled blocks, each figure beside its prediction.

The driver owns the run; workers only compute and report. What is measured in the run's own warm-up (layer times, links)
is what its predictions rest on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from orch.cluster import Cluster
from orch.errors import OrchError, RunError
from orch.experiment import inputs as kept
from orch.experiment.breakdown import measured_breakdowns
from orch.experiment.measure import Measurements, subject_of
from orch.experiment.outcome import Outcome, Trained, mode_of
from orch.experiment.predict import Forecast, Inputs, optimizer_kind, predict, repredict
from orch.experiment.quality import block_time_s
from orch.experiment.show import Show
from orch.experiment.statistics import block_orders
from orch.gang import Gang
from orch.models.profile import Profile
from orch.plan import to_json
from orch.plan.timeline import Timeline
from orch.recipe import Recipe
from orch.runtime import session
from orch.runtime.session import Block, Progressed, StackJob
from orch.track.steps import Step, Value
from orch.track.tracker import RunLog
from orch.units import format_count

# Rounds of measurements between the blocks, spread evenly.
ROUNDS = 4


@dataclass
class Known:
    """What the first warm-up has measured, for short runs on workers of one kind: the cluster, and layer times a kind of
    training. A run with it measures nothing again: its own figures stand, its predictions are those of the first.
    """

    cluster: Cluster | None = None
    trained: dict[tuple[object, ...], tuple[Profile, float | None]] = field(default_factory=dict)


AfterBlock = Callable[[Trained], None]


class Execution:
    """The driver's side of one run. `outcome` is what has been found so far, None before training begins.

    `known` spares the warm-up what an earlier one has measured. `after_block` is called between two calls of the gang,
    when no rank is in a step: what it raises ends the run with all ranks at the same boundary.
    """

    def __init__(
        self,
        recipe: Recipe,
        gang: Gang,
        run: RunLog,
        show: Show,
        known: Known | None = None,
        after_block: AfterBlock | None = None,
    ) -> None:
        self.outcome: Outcome | None = None
        self.workers: list[dict[str, Any]] = []
        self._known = known
        self._after_block = after_block
        self._loaded: list[tuple[str, int]] = []
        self._recipe = recipe
        self._gang = gang
        self._run = run
        self._show = show
        self._subjects = {name: subject_of(recipe, name) for name in recipe.stacks}
        self._measured = Measurements(recipe, gang, self._subjects)
        self._done = 0

    def all(self) -> Outcome:
        """Run every stack and return what was found. RunError names the stack and block that failed."""
        recipe = self._recipe
        self._show.stage(
            f"{format_count(self._gang.size, 'worker')} ready ({self._gang.kind}); preparing model and data"
        )
        self.workers = self._gang.call(session.prepare, self._subjects[recipe.baseline.name])
        self._run.start()  # what is wrong with the user's model or data has been found: until here no run is kept for it
        self._show.stage("measuring layer times and links")
        inputs = self._warm_up()
        cluster, notes = inputs.cluster, list(self._gang.notes)
        self._run.environment(
            workers=self.workers, seeds=list(recipe.seeds), links=cluster.links, sharing=cluster.sharing, notes=notes
        )
        self._run.write(kept.FILE, kept.to_json(inputs))
        forecast = predict(recipe, inputs)
        if self._known is None:
            self._measured.operations({name: stack.plan for name, stack in forecast.stacks.items()})
        for name, stack in forecast.stacks.items():
            self._run.write("plan.json", to_json(stack.plan), stack=name)
        self.outcome = Outcome(recipe, forecast, notes=self._gang.notes)
        self._show.begin(len(recipe.seeds) * sum(recipe.training_steps(name) for name in recipe.stacks))
        for seed in recipe.seeds:
            self._train(seed, self.outcome)
        self._show.end()
        # The machine has changed its speed since: what was measured between the blocks says how.
        if self._known is None:
            inputs = self._measured.inputs()
            self._run.write(kept.FILE, kept.to_json(inputs))
            self.outcome = replace(self.outcome, forecast=repredict(forecast, recipe, inputs))
        return self.outcome

    def _warm_up(self) -> Inputs:
        """Return what predictions compute with: measured now, or by an earlier run on workers of this kind."""
        known, recipe = self._known, self._recipe
        # A learning rate takes no time; what an optimiser keeps for every parameter does.
        keys = {
            name: (str(one.model), str(one.data), one.batch, one.precision, optimizer_kind(recipe.stacks[name].train))
            for name, one in self._subjects.items()
        }
        if known is not None and known.cluster is not None and all(key in known.trained for key in keys.values()):
            found = {name: known.trained[key] for name, key in keys.items()}
            profiles = {name: profile for name, (profile, _) in found.items()}
            return Inputs(known.cluster, profiles, {name: update_s for name, (_, update_s) in found.items()})
        self._measured.round()
        inputs = self._measured.inputs()
        if known is not None:
            known.cluster = inputs.cluster
            known.trained |= {key: (inputs.profiles[name], inputs.update_s[name]) for name, key in keys.items()}
        return inputs

    # -- training ---------------------------------------------------------------------------------------------------------

    def _train(self, seed: int, outcome: Outcome) -> None:
        """Train every stack from `seed`, in blocks of a balanced shuffle."""
        recipe, measure, forecast = self._recipe, self._recipe.measure, outcome.forecast
        results = {name: Trained(name, seed) for name in recipe.stacks}
        outcome.trained.extend(results.values())
        for name in recipe.stacks:
            self._in((name, seed), session.load, self._job(name, seed, forecast))
            self._loaded.append((name, seed))
            self._judge(results[name])
        for name in recipe.stacks:
            self._block(results[name], None, measure.warmup, forecast)
        for number, order in enumerate(block_orders(list(recipe.stacks), measure.blocks, seed)):
            between = number * ROUNDS // measure.blocks != (number - 1) * ROUNDS // measure.blocks
            if between and self._known is None:
                self._measured.round()
            for name in order:
                self._block(results[name], number, measure.steps, forecast)
                self._judge(results[name])
                if self._after_block is not None:
                    self._after_block(results[name])
        self._train_on(results, forecast)
        recorded = {name: self._finish(results[name]) for name in recipe.stacks}
        computing = {name: stack.compute_s for name, stack in forecast.stacks.items()}
        for name, parts in measured_breakdowns(recorded, computing).items():
            results[name].breakdown = parts

    def _train_on(self, results: Mapping[str, Trained], forecast: Forecast) -> None:
        """Train what is left of each stack's training once its time is measured, a block's length at a time."""
        length = self._recipe.measure.steps
        left = {name: self._recipe.training_steps(name) - len(results[name].losses) for name in results}
        while any(left.values()):
            for name in (name for name, steps in left.items() if steps):
                self._block(results[name], None, min(length, left[name]), forecast)
                self._judge(results[name])
                left[name] -= min(length, left[name])

    def _job(self, name: str, seed: int, forecast: Forecast) -> StackJob:
        stack = self._recipe.stacks[name]
        config = next((m.config for m in stack.members if m.technique.engine is not None), None)
        return StackJob(name, self._subjects[name], forecast.stacks[name].plan, seed, stack.engine, config)

    def _block(self, trained: Trained, block: int | None, steps: int, forecast: Forecast) -> None:
        """Run one block of a stack and keep what it did; `block` None is training that is not timed."""
        if steps == 0:
            return
        key = (trained.stack, trained.seed)
        ranks: list[Block] = self._in(key, session.run_block, *key, steps, block=block)
        _refuse_differences(self._cell(key, block), ranks)
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
        key = (trained.stack, trained.seed)
        figures = self._in(key, session.evaluate, *key)[0]
        clock, step = (trained.clock_s or [0.0])[-1], len(trained.losses)
        trained.judged.append((clock, figures["loss"], figures["accuracy"]))
        self._run.stack(trained.stack, trained.seed).log_values(
            [Value(step, clock, f"val_{name}", value) for name, value in figures.items()]
        )

    def _finish(self, trained: Trained) -> list[Timeline | None]:
        """Take the ranks' timelines, check that all hold the same parameters, and free the stack."""
        key = (trained.stack, trained.seed)
        mode = mode_of(self._gang.kind)
        recorded: list[Timeline | None] = self._in(key, session.timeline, *key)
        timelines = [found and replace(found, mode=mode) for found in recorded]
        trained.timeline = timelines[0]
        prints = self._in(key, session.fingerprint, *key)
        odd = [rank for rank, value in enumerate(prints) if value != prints[0]]
        if odd:
            message = f"{self._cell(key)}: after training, rank {odd[0]} holds other parameters than rank 0"
            raise RunError(message, code="E611", hint="the techniques of this stack do not do the same on every rank")
        self._in(key, session.forget, *key)
        self._loaded.remove(key)
        return timelines

    def abandon(self) -> None:
        """Free what is loaded on every rank, for a run that `after_block` ended: the workers stay fit for another."""
        for key in list(self._loaded):
            self._in(key, session.forget, *key)
            self._loaded.remove(key)

    def _cell(self, key: tuple[str, int], block: int | None = None) -> str:
        """Name a cell of the experiment, as the user knows it: its stack, its seed where there are several, its block."""
        stack, seed = key
        parts = [f"stack {stack}"]
        if len(self._recipe.seeds) > 1:
            parts.append(f"seed {seed}")
        if block is not None:
            parts.append(f"block {block + 1} of {self._recipe.measure.blocks}")
        return ", ".join(parts)

    def _in(self, key: tuple[str, int], function: Any, *args: Any, block: int | None = None) -> list[Any]:
        """Call a function of the session on every rank; a failure names the cell."""
        cell = self._cell(key, block)
        where = cell.removeprefix("stack ")

        def on_event(rank: int, event: Any) -> None:
            if isinstance(event, Progressed):
                self._show.progress(where, self._done + event.step, event.loss, event.samples_per_s)

        try:
            return self._gang.call(function, *args, on_event=on_event)
        except OrchError as error:
            error.message = f"{cell}: {error.message}"
            error.args = (error.message,)
            raise


def _refuse_differences(cell: str, ranks: Sequence[Block]) -> None:
    """A run that did not do what its plan says has measured something else: its figures would be about nothing."""
    for rank, block in enumerate(ranks):
        if block.differences:
            more = f" (and {len(block.differences) - 1} more)" if len(block.differences) > 1 else ""
            message = f"{cell}: rank {rank} did not run its plan: {block.differences[0]}{more}"
            raise RunError(message, code="E610", hint="report it: the technique or the runtime is at fault")
