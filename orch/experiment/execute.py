"""Really run a recipe: one gang, every stack in shuffled blocks, each figure beside its prediction.

The driver owns the run; workers only compute and report. Plans are made from what is measured before the first block
(layer times, links); the predictions that are printed rest on what is measured between the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from orch.errors import OrchError
from orch.experiment import expert_load
from orch.experiment import inputs as kept
from orch.experiment.breakdown import measured_breakdowns
from orch.experiment.checkpoints import Checkpoints
from orch.experiment.checks import refuse_differences, refuse_unequal
from orch.experiment.clocks import Clocks, one_clock
from orch.experiment.injection import FIRED, Deaths, Injection
from orch.experiment.injection import refuse as refuse_faults
from orch.experiment.known import Known, warm_up
from orch.experiment.measure import Measurements, subject_of
from orch.experiment.outcome import Outcome, Trained, mode_of
from orch.experiment.past import PARAMETERS, PAYLOAD, PEAK, PLANNED_FROM, Past, planned_from
from orch.experiment.predict import Forecast, predict, repredict
from orch.experiment.quality import block_time_s
from orch.experiment.schedule import schedule
from orch.experiment.show import Show
from orch.gang import Gang, OnEvent
from orch.models.load import added
from orch.plan import to_json
from orch.plan.fault import Fault
from orch.plan.timeline import Timeline
from orch.recipe import Recipe
from orch.runtime import keep, session
from orch.runtime.alignment import Offset, offset
from orch.runtime.block import Block, joined, most_held
from orch.runtime.checkpoint import Saved
from orch.runtime.session import Progressed, StackJob
from orch.track.steps import Step, Value
from orch.track.tracker import RunLog
from orch.units import format_count

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
        self._past: Past | None = None
        self._works = {seed: schedule(recipe, seed) for seed in recipe.seeds}
        self._checkpoints = Checkpoints(recipe, run.path, show.stage)
        self._injection = Injection(recipe)
        # The plans of the gang as it is, and whether its steps count as measurements: not once it has shrunk.
        self._plans: Forecast | None = None
        self._timed = True
        # Trainings that are over, with the fingerprint of their parameters.
        self._prints: dict[tuple[str, int], str] = {}

    @property
    def steps_done(self) -> int:
        """Steps of all trainings together that are measured and kept."""
        return 0 if self.outcome is None else sum(len(trained.losses) for trained in self.outcome.trained)

    def go_on_from(self, past: Past) -> None:
        """Take up the run that `past` tells of, instead of beginning one."""
        self._past = past
        self._injection.fired = past.fired

    def move_to(self, gang: Gang) -> None:
        """Take other workers, after those so far were lost; what is measured stays."""
        self._gang = gang
        self._measured.move_to(gang)
        self._loaded.clear()

    def shrink_to(self, recipe: Recipe, gang: Gang) -> None:
        """Take fewer workers, of the same recipe on fewer nodes: trainings go on to their ends, and nothing is timed from
        now on, for it would be another experiment's.
        """
        self._recipe, self._timed, self._plans = recipe, False, None
        self._subjects = {name: subject_of(recipe, name) for name in recipe.stacks}
        self._measured = Measurements(recipe, gang, self._subjects)
        self._checkpoints.expect(recipe.cluster.world_size)
        self.move_to(gang)
        nodes = format_count(recipe.cluster.nodes, "node")
        self.note(
            f"trains on with {nodes}, untimed: figures are those of the blocks that all stacks had finished before"
        )

    def mend(self) -> None:
        """Return when no link is cut any more: before that new workers would be lost too."""
        self._injection.wait_until_restored()

    def note(self, text: str) -> None:
        """Say something now and, where training has begun, in the results; once."""
        if self.outcome is None or text not in self.outcome.notes:
            self._show.stage(text)
            if self.outcome is not None:
                self.outcome = replace(self.outcome, notes=(*self.outcome.notes, text))

    def all(self) -> Outcome:
        """Run every stack, or what is left of it, and return what was found. RunError names the stack and block that
        failed.
        """
        recipe = self._recipe
        self._show.stage(
            f"{format_count(self._gang.size, 'worker')} ready ({self._gang.kind}); preparing model and data"
        )
        refuse_faults(recipe, self._gang.kind)
        self.workers = self._gang.call(session.prepare, self._subjects[recipe.baseline.name])
        self._run.start()  # what is wrong with the user's model or data has been found: until here no run is kept for it
        if self.outcome is None:
            self.outcome = self._begin()
            self._plans = self.outcome.forecast
        elif self._plans is None:
            self._measured.round()
            self._plans = predict(recipe, self._measured.inputs())
        self._checkpoints.open(self._gang)
        self._show.begin(len(recipe.seeds) * sum(recipe.training_steps(name) for name in recipe.stacks))
        for seed in recipe.seeds:
            self._train(seed, self.outcome)
        self._injection.refuse_unfired()
        self._gang.call(keep.written, on_event=self._on_event(""))
        self._checkpoints.close(done=True)
        self._show.end()
        # The machine has changed its speed since: what was measured between the blocks says how.
        if not self._timed:
            return self.outcome.before_shrinking()
        if self._known is None:
            inputs = self._measured.inputs()
            self._run.write(kept.FILE, kept.to_json(inputs))
            self.outcome = replace(self.outcome, forecast=repredict(self.outcome.forecast, recipe, inputs))
        return self.outcome

    def _begin(self) -> Outcome:
        """Measure what predictions rest on, and plan every stack: as it was planned when the run began, if it did before."""
        recipe, past = self._recipe, self._past
        self._show.stage("measuring layer times and links")
        measured = warm_up(self._known, recipe, self._subjects, self._measured)
        inputs = measured if past is None else past.inputs or measured
        self._run.write(PLANNED_FROM, planned_from(inputs))
        cluster, notes = inputs.cluster, list(self._gang.notes)
        self._run.environment(
            workers=self.workers, seeds=list(recipe.seeds), links=cluster.links, sharing=cluster.sharing, notes=notes
        )
        self._run.write(kept.FILE, kept.to_json(inputs))
        forecast = predict(recipe, inputs, timed=self._known is None)  # nobody reads what each pass did in a short run
        if self._known is None:
            self._measured.operations({name: stack.plan for name, stack in forecast.stacks.items()})
        for name, stack in forecast.stacks.items():
            if past is not None and past.plan(name) not in (None, stack.plan):
                raise OrchError(f"stack {name} has another plan now than when the run began", code="E820",
                                hint="the code that plans it has changed; begin a new run")  # fmt: skip
            self._run.write("plan.json", to_json(stack.plan), stack=name)
        outcome = Outcome(recipe, forecast, notes=self._gang.notes)
        if past is not None:
            self._take_up(past, outcome)
        return outcome

    def _take_up(self, past: Past, outcome: Outcome) -> None:
        """Read what the run has done so far, seed by seed up to the one it was in."""
        for seed, works in self._works.items():
            found = [
                past.trained(works, name, seed, stack.plan.period) for name, stack in outcome.forecast.stacks.items()
            ]
            if not any(trained.judged or trained.losses for trained in found):
                return
            outcome.trained.extend(found)
            prints = {(name, seed): past.prints(name).get(str(seed)) for name in self._recipe.stacks}
            self._prints |= {key: value for key, value in prints.items() if value is not None}

    # -- training ---------------------------------------------------------------------------------------------------------

    def _train(self, seed: int, outcome: Outcome) -> None:
        """Train every stack from `seed`, in blocks of a balanced shuffle; what is done already is left out."""
        results = {trained.stack: trained for trained in outcome.trained if trained.seed == seed}
        if not results:
            results = {name: Trained(name, seed) for name in self._recipe.stacks}
            outcome.trained.extend(results.values())
        left = [name for name in results if (name, seed) not in self._prints]
        for name in left:
            self._enter(results[name])
        before = self._offsets()
        begun: int | None = None
        for work in self._works[seed]:
            trained = results[work.stack]
            if work.ends > len(trained.losses):
                if self._timed and work.block not in (None, begun):
                    begun = work.block
                    self._measure_again(begun or 0, outcome)
                self._block(trained, work.block if self._timed else None, work.steps)
            # A trial is compared by what it comes to: only a target may want to know what it began with.
            spared = self._known is not None and work.judgements == 1 and self._recipe.target is None
            if work.judgements > len(trained.judged) and not spared:
                self._judge(trained)
                self._keep(trained)
                if work.block is not None and self._after_block is not None:
                    self._after_block(trained)
        clocks = Clocks(before, self._offsets())
        recorded = {name: self._finish(results[name]) for name in left}
        computing = {name: self._planned.stacks[name].compute_s for name in left if self._timed}
        recorded = recorded if self._timed else {}
        for name, timelines in recorded.items():
            results[name].ranks, results[name].clock_error_s = clocks.aligned(timelines), clocks.error_s
        for name, parts in measured_breakdowns(recorded, computing).items():
            results[name].breakdown = parts

    def _offsets(self) -> list[Offset]:
        return one_clock(self.workers) or self._gang.call(offset)

    def _measure_again(self, block: int, outcome: Outcome) -> None:
        if self._known is None:
            self._measured.again(block, sum(trained.clock_s[-1] for trained in outcome.trained if trained.clock_s))

    @property
    def _planned(self) -> Forecast:
        assert self._plans is not None
        return self._plans

    def _enter(self, trained: Trained) -> None:
        """Load a stack and bring it to where its training stands: from its last checkpoint, and by training again."""
        key, steps = (trained.stack, trained.seed), len(trained.losses)
        self._in(key, session.load, self._job(*key))
        self._loaded.append(key)
        at = 0
        for place in self._checkpoints.found(*key, steps):
            problem = next(filter(None, self._in(key, keep.restore, *key, place.root, place.folder)), None)
            if problem is None:
                at = place.step
                break
            self._show.stage(f"{self._cell(key)}: {problem}; looking for an older one")
            self._in(key, session.forget, *key)
            self._in(key, session.load, self._job(*key))
        if at < steps:
            self._show.stage(f"{self._cell(key)}: training steps {at} to {steps - 1} again, which were lost")
        while at < steps:
            length = min(self._recipe.measure.steps, steps - at)
            ranks: list[Block] = self._in(key, session.run_block, *key, length)
            again = _means(rank.losses for rank in ranks)
            others = trained.losses[at:] if self._timed else ()  # other shares of a batch are rounded otherwise
            if any(one != other and one == one for one, other in zip(again, others, strict=False)):
                self.note(f"stack {trained.stack} does not repeat itself: trained again, steps {at} to "
                           f"{at + length - 1} had other losses, so its training is not the uninterrupted one")  # fmt: skip
            at += length

    def _keep(self, trained: Trained, *, last: bool = False) -> None:
        """Take a checkpoint if one is due."""
        key = (trained.stack, trained.seed)
        place = self._checkpoints.due(*key, len(trained.losses), last=last)
        if place is not None:
            self._in(key, keep.save, *key, place.root, place.folder)

    def _job(self, name: str, seed: int) -> StackJob:
        stack = self._recipe.stacks[name]
        config = next((m.config for m in stack.members if m.technique.engine is not None), None)
        stop = stack.train.on_nan == "stop"
        return StackJob(name, self._subjects[name], self._planned.stacks[name].plan, seed, stack.engine, config, stop)

    def _block(self, trained: Trained, block: int | None, steps: int) -> None:
        """Run one block of a stack and keep what it did; `block` None is training that is not timed."""
        key = (trained.stack, trained.seed)
        if block is not None and self._known is None:
            self._measured.speed(trained.stack)
        ranks = self._through_faults(key, len(trained.losses), steps, block)
        refuse_differences(self._cell(key, block), ranks)
        # A step ends when its slowest rank does; the loss of a step is the mean over ranks, whose batches differ.
        times = [max(each) for each in zip(*(rank.step_times_s for rank in ranks), strict=True)]
        losses = _means(rank.losses for rank in ranks)
        first, clock = len(trained.losses), trained.clock_s[-1] if trained.clock_s else 0.0
        lines = []
        for index, (loss, seconds) in enumerate(zip(losses, times, strict=True)):
            clock += seconds
            trained.clock_s.append(clock)
            lines.append(Step(first + index, block, loss, None if block is None else seconds, clock))
        log = self._run.stack(trained.stack, trained.seed)
        if block is not None:
            trained.payload_bytes.append(ranks[0].payload_bytes)
            log.log_values([Value(first + steps, clock, PAYLOAD, trained.payload_bytes[-1])])
            trained.block_times_s.append(block_time_s(times, self._planned.stacks[trained.stack].plan.period))
        if (peak := most_held(ranks)) is not None:
            log.log_values([Value(first + steps, clock, PEAK, float(peak))])
            trained.peak_bytes = peak
        if loads := added(rank.loads for rank in ranks):
            log.log_values(expert_load.to_values(first + steps, clock, loads))
            trained.loads.append((first + steps, clock, loads))
        trained.losses.extend(losses)
        log.log_steps(lines)

    def _through_faults(self, key: tuple[str, int], first: int, steps: int, block: int | None) -> list[Block]:
        """Run a block with the faults that fall into it, in parts where the driver has to act."""

        def run(steps: int, deaths: Deaths) -> list[Block]:
            return self._in(key, session.run_block, *key, steps, deaths, block=block)

        def told(fault: Fault) -> None:
            self.note(f"{self._cell(key, block)}: {fault}")

        before = len(self._injection.fired)
        try:
            parts = self._injection.through(self._gang, key, range(first, first + steps), run, told)
        finally:
            if len(self._injection.fired) > before:
                self._keep_fired()
        return [joined(own) for own in zip(*parts, strict=True)]

    def _keep_fired(self) -> None:
        self._run.write(FIRED, {"fired": sorted(self._injection.fired)})

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
        trained.timeline = timelines[0] if self._timed else None
        prints = self._in(key, session.fingerprint, *key)
        refuse_unequal(self._cell(key), prints)
        self._keep(trained, last=True)
        self._in(key, session.forget, *key)
        self._loaded.remove(key)
        self._prints[key] = prints[0]
        seeds = {str(seed): value for (name, seed), value in self._prints.items() if name == trained.stack}
        self._run.write(PARAMETERS, seeds, stack=trained.stack)
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
        try:
            return self._gang.call(function, *args, on_event=self._on_event(cell.removeprefix("stack ")))
        except OrchError as error:
            error.message = f"{cell}: {error.message}"
            error.args = (error.message,)
            raise

    def _on_event(self, where: str) -> OnEvent:
        done = self.steps_done

        def on_event(rank: int, event: Any) -> None:
            if isinstance(event, Progressed):
                self._show.progress(where, done + event.step, event.loss, event.samples_per_s)
            elif isinstance(event, Saved):
                self._checkpoints.heard(rank, event)

        return on_event


def _means(ranks: Iterable[Sequence[float]]) -> list[float]:
    return [fmean(each) for each in zip(*ranks, strict=True)]
