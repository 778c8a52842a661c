"""What a run's predictions rest on: layer times, the runtime's own work and links, measured by the gang that trains.

A shared machine's speed changes within seconds, so a round is made before the blocks, to plan from, and others between
them; figures are means and medians over the latter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean, median
from typing import TypeVar

from orch.cluster import Cluster, Curve, Overhead
from orch.experiment.predict import Inputs
from orch.gang import Gang
from orch.plan import Collective, Plan
from orch.plan.operations import own_work
from orch.recipe import Recipe
from orch.runtime import warmup
from orch.runtime.links import LinkTimes
from orch.runtime.links import merge as merge_links
from orch.runtime.observe import Observation, merge
from orch.runtime.optimizers import Schedule
from orch.runtime.session import Subject
from orch.workload import data_parallel, without_peers

SOURCE = "measured in this run"
Round = TypeVar("Round")
# Rounds between the blocks, spread evenly.
ROUNDS = 4
# Seconds of a round's links, and of one turn of the engine's own work; all of it no more than this share of the training.
FIRST_S, AGAIN_S, PACE_S, SHARE = 4.0, 2.0, 0.12, 0.25
PACE_ROUNDS, FEWEST_ROUNDS = 4, 2
LONGEST_S = 1.5
OPERATION_STEPS = 8
MOST_PACED, FEWEST_PACED = 10, 2
# A rank that ran less of the time than this did not lose the rest to others: it came late.
SPEED_STEPS, LEAST_SHARE = 3, 0.5


class Measurements:
    """The rounds of one run. `subjects` names each stack's."""

    def __init__(self, recipe: Recipe, gang: Gang, subjects: Mapping[str, Subject]) -> None:
        self._recipe = recipe
        self._gang = gang
        self._keys = {name: (one.batch, one.precision, str(one.optimizer)) for name, one in subjects.items()}
        self._subjects = {self._keys[name]: one for name, one in subjects.items()}
        self._seen: dict[object, list[Observation]] = {key: [] for key in self._subjects}
        self._links: list[LinkTimes] = []
        self._overheads: list[Overhead] = []
        # Of each stack that computes something itself: its plan, for one rank where one can run it; by task what it is, and its
        # formula's seconds.
        self._works: dict[str, tuple[Plan, dict[str, tuple[str, float]]]] = {}
        # Of each round, by stack: of every task what it is, the formula's seconds, and those that it took.
        self._operations: list[dict[str, list[tuple[str, float, float]]]] = []
        # Where each rank is, and how many share a core.
        self._places: Sequence[warmup.Where] = ()
        self._crowd = 1.0
        # Seconds of a plain step of the model, before each block that was timed, with the block's stack.
        self._speeds: list[tuple[str, float]] = []
        # Seconds that had been trained before the last round.
        self._trained_s = 0.0

    def move_to(self, gang: Gang) -> None:
        """Measure other workers from now on, of the same kind; what was measured counts on."""
        self._gang = gang

    def round(self, most_bytes: int = 0, budget_s: float = 0.0, longest_s: float = LONGEST_S) -> None:
        """Measure everything once; the first time longer. Links: with messages of up to `most_bytes` (0: what the model
        can need) for `budget_s` seconds (0: what a run can afford), but none that would take longer than `longest_s`.
        """
        first = not self._seen[self._keys[self._recipe.baseline.name]]
        if first and not self._recipe.cluster.uneven:  # a node that is held back does not run when it could
            self._places = self._gang.call(warmup.where)
            self._crowd = _crowd(self._places)
        seed = self._recipe.seeds[0]
        for key, subject in self._subjects.items():
            self._seen[key].append(merge(self._gang.call(warmup.watch, subject, seed), self._crowd))
        if self._gang.size > 1:
            seen = self._seen[self._keys[self._recipe.baseline.name]][-1]
            worth = min(1.0, SHARE * seen.step_s * self._recipe.measure.total * len(self._keys) / FIRST_S)
            if first:
                self._overheads.append(self._overhead(seen, worth * PACE_S))
            most_bytes = most_bytes or 4 * seen.profile.numel
            budget_s = budget_s or worth * (FIRST_S if first else AGAIN_S)
            rows = bool(self._recipe.model.mixtures)
            self._links.append(merge_links(self._gang.call(warmup.measure, most_bytes, budget_s, longest_s, rows)))

    def again(self, block: int, trained_s: float) -> None:
        """Measure once more before block `block`, counted from 0, if it is one of those that `ROUNDS` falls on. Not
        where less than a round takes has been trained since the last one: `trained_s` are the seconds until now.
        """
        blocks = self._recipe.measure.blocks
        if block * ROUNDS // blocks != (block - 1) * ROUNDS // blocks and trained_s - self._trained_s >= AGAIN_S:
            self.round()
            self._operate()
            self._trained_s = trained_s

    def speed(self, stack: str) -> None:
        """Measure how fast the machine is now, just before a block of `stack`, where ranks share cores: between two rounds
        such a machine may change its speed several times.
        """
        key = self._keys[stack]
        if self._crowd > 1.0 and self._seen[key]:
            steps = max(1, min(SPEED_STEPS, int(PACE_S / self._seen[key][-1].step_s)))
            ranks = self._gang.call(warmup.speed, self._subjects[key], self._recipe.seeds[0], steps)
            self._speeds.append((stack, _in_turns(self._places, ranks)))

    def operations(self, plans: Mapping[str, Plan]) -> None:
        """Measure what the techniques of each stack compute themselves: encode, decode, and what feedback does. Each rank
        runs a stack's plan alone; one in which some ranks meet, as those that hold experts do, all run together.
        """
        cluster = self._cluster({})
        for name, plan in plans.items():
            costs = {
                task.name: (work, task.op.cost_s(cluster, cluster.world))
                for step in plan.steps
                for task in step
                if (work := own_work(task.op)) is not None
            }
            if costs and self._gang.size > 1:
                alone = all(task.group == "world" for step in plan.steps for task in step)
                self._works[name] = without_peers(plan) if alone else plan, costs
        self._operate()

    def _operate(self) -> None:
        found: dict[str, list[tuple[str, float, float]]] = {}
        for name, (plan, costs) in self._works.items():
            subject = self._subjects[self._keys[name]]
            ranks = self._gang.call(warmup.operations, subject, self._recipe.seeds[0], plan, OPERATION_STEPS)
            longer = _running(ranks, self._crowd)
            found[name] = [
                (work, formula, longer * mean(rank.seconds[task] for rank in ranks))
                for task, (work, formula) in costs.items()
            ]
        if found:
            self._operations.append(found)

    def _own_work(self, slower: Mapping[str, float]) -> dict[str, Curve]:
        """Return what operations of each kind take over their formula's seconds, from all rounds that count. `slower`: by
        how much plain steps took longer around a stack's blocks than in those rounds.
        """
        points: dict[str, list[tuple[float, float]]] = {}
        for rounds in _settled(self._operations):
            for name, found in rounds.items():
                for work, formula, seconds in found:
                    points.setdefault(work, []).append((formula, slower.get(name, 1.0) * seconds))
        return {work: Curve.fitted(found) for work, found in points.items()}

    def inputs(self) -> Inputs:
        """Return what predictions compute with, from all rounds so far."""
        merged = {key: _over_rounds(_settled(seen)) for key, seen in self._seen.items()}
        # Watching shows the parts of a mixture, or of attention, not that they are one.
        model = self._recipe.model
        found = {name: self._in_its_blocks(name, merged[key]) for name, key in self._keys.items()}
        profiles = {
            name: replace(
                seen.profile,
                mixtures=model.mixtures,
                stages=model.stages,
                attentions=tuple(one.among([part.name for part in seen.profile.modules]) for one in model.attentions),
            )
            for name, seen in found.items()
        }
        slower = {name: seen.step_s / merged[self._keys[name]].step_s for name, seen in found.items()}
        return Inputs(self._cluster(slower), profiles, {name: seen.update_s for name, seen in found.items()})

    def _in_its_blocks(self, stack: str, seen: Observation) -> Observation:
        """Return what was seen as it was on the machine of the stack's own blocks: their median, as of measured times."""
        key = self._keys[stack]
        alike = [(name, seconds) for name, seconds in self._speeds if self._keys[name] == key]
        after = [seconds for _, seconds in alike[1:]] + [seconds for _, seconds in alike[-1:]]
        own = [(before + behind) / 2 for (name, before), behind in zip(alike, after, strict=True) if name == stack]
        return seen.lasting(median(own)) if own else seen

    def _cluster(self, slower: Mapping[str, float]) -> Cluster:
        """Return the recipe's cluster with what this gang's collectives cost, alone and beside compute; `slower`: see
        `_own_work`.
        """
        cluster = self._recipe.cluster
        if not self._links:
            return cluster
        times = merge_links(_settled(self._links))
        link = times.link(cluster.world, SOURCE)
        if cluster.nodes > 1:
            described = cluster.links.inter
            cluster = cluster.with_links(inter=link.held_to(None if described is None else described.usual))
        else:
            cluster = cluster.with_links(intra=link)
        overhead = Overhead(
            mean(one.step_s for one in self._overheads), mean(one.collective_s for one in self._overheads), SOURCE
        )
        # Slow ranks are in what was measured: compute is as long as the slowest one's.
        return replace(
            cluster,
            speed={},
            sharing=times.sharing(SOURCE),
            overhead=overhead,
            operations=self._own_work(slower),
        )

    def _overhead(self, seen: Observation, turn_s: float) -> Overhead:
        """Return what the engine takes: a step of it without collectives over one without it, and with a collective a
        tensor over one with none, each rank for itself.
        """
        baseline = self._recipe.baseline.name
        subject = self._subjects[self._keys[baseline]]
        silent, sends = (data_parallel(seen.profile, size, subject.batch, update_s=seen.update_s) for size in (1, 2))
        plans: list[Plan | None] = [None, without_peers(silent), without_peers(sends)]
        steps = max(FEWEST_PACED, min(MOST_PACED, int(turn_s / seen.step_s)))
        rounds = max(FEWEST_ROUNDS, min(PACE_ROUNDS, int(PACE_ROUNDS * turn_s / (steps * seen.step_s))))
        if (
            self._crowd > 1.0
        ):  # a machine that changes its speed: the shorter the turns, the more alike it is to all three
            steps, rounds = 1, rounds * steps
        ranks = self._gang.call(warmup.pace, subject, self._recipe.seeds[0], plans, rounds, steps)
        number = sum(isinstance(task.op, Collective) for task in sends.steps[0])
        step_s, sent_s = (self._crowd * _difference(ranks, place, place - 1) for place in (1, 2))
        return Overhead(step_s, sent_s / max(1, number), SOURCE)


def subject_of(recipe: Recipe, stack: str) -> Subject:
    """Return what a stack of `recipe` trains on what. The recipe names data: what cannot be run has been refused."""
    train = recipe.stacks[stack].train
    assert recipe.data is not None
    optimizer = {train.optimizer.name: train.optimizer.settings}
    rate = Schedule(train.learning_rate.shape, train.learning_rate.warmup, recipe.training_steps(stack))
    return Subject(recipe.model, recipe.data, recipe.batch_per_worker(stack), optimizer, train.precision, rate)


def _in_turns(places: Sequence[warmup.Where], ranks: Sequence[Sequence[warmup.Turn]]) -> float:
    """Return the seconds of a step of ranks that share cores and train together: on each core they run by turns, and all
    wait in each step for the slowest core of that step. What else ran there meanwhile (the hosts of workers, the machine)
    takes as much longer as it took of the time from the first rank's begin of each step to the last one's end.
    """
    cores: dict[tuple[str, tuple[int, ...]], list[Sequence[warmup.Turn]]] = {}
    for (host, own, _), turns in zip(places, ranks, strict=True):
        cores.setdefault((host, own), []).append(turns)
    steps: list[list[float]] = []
    shares: list[float] = []
    for (_, own), ranks_here in cores.items():
        by_step = list(zip(*ranks_here, strict=True))
        steps.append([sum(turn.ran_s for turn in step) / len(own) for step in by_step])
        whole_s = sum(max(turn.end_s for turn in step) - min(turn.begin_s for turn in step) for step in by_step)
        shares.append(min(1.0, max(LEAST_SHARE, sum(steps[-1]) / whole_s)))
    slowest: list[float] = [max(each) for each in zip(*steps, strict=True)]
    return mean(slowest) / mean(shares)


def _crowd(places: Sequence[warmup.Where]) -> float:
    """Return how many ranks' threads share a core on the fullest machine, at least 1."""
    threads: dict[str, int] = {}
    cores: dict[str, set[int]] = {}
    for host, own, count in places:
        threads[host] = threads.get(host, 0) + count
        cores.setdefault(host, set()).update(own)
    return max(1.0, *(count / len(cores[host]) for host, count in threads.items()))


def _running(ranks: Sequence[warmup.OwnWork], crowd: float) -> float:
    """Return by how much to multiply the clock's seconds of ranks of which `crowd` share a core, so that a step lasts as
    long as all of them run, of the slowest rank, as layer times do (`observe.merge`).
    """
    return crowd * max(rank.ran_s for rank in ranks) / mean(rank.busy_s for rank in ranks) if crowd > 1.0 else 1.0


def _settled(rounds: list[Round]) -> list[Round]:
    """Return the rounds between the blocks, where there are any: before them the machine is still busy with what starts
    a run.
    """
    return rounds[1:] or rounds


def _over_rounds(seen: Sequence[Observation]) -> Observation:
    """Return one observation of all rounds: as long as they were on average."""
    return merge(seen).lasting(mean(one.step_s for one in seen))


def _difference(ranks: Sequence[warmup.Paces], more: int, less: int) -> float:
    """Return by how much a step under plan `more` takes longer than the one under `less` beside it, over rounds and ranks."""
    found = (median(long - short for long, short in zip(rank[more], rank[less], strict=True)) for rank in ranks)
    return max(0.0, mean(found))
