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
FIRST_S, AGAIN_S, PACE_S, SHARE = 4.0, 1.5, 0.12, 0.25
PACE_ROUNDS, FEWEST_ROUNDS = 4, 2
LONGEST_S = 1.5
OPERATION_STEPS = 8
MOST_PACED, FEWEST_PACED = 10, 2


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
        self._operations: dict[str, Curve] = {}
        # Ranks that share a core.
        self._crowd = 1.0
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
            self._crowd = _crowd(self._gang.call(warmup.where))
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
            self._trained_s = trained_s

    def operations(self, plans: Mapping[str, Plan]) -> None:
        """Measure what the techniques of each stack compute themselves: encode, decode, and what feedback does.

        Not where experts are spread: one rank cannot run such a plan alone, so the formulas stand.
        """
        if self._recipe.layout.experts > 1:
            return
        cluster = self._cluster()
        points: dict[str, list[tuple[float, float]]] = {}
        for name, plan in plans.items():
            costs = {
                task.name: (work, task.op.cost_s(cluster, cluster.world))
                for step in plan.steps
                for task in step
                if (work := own_work(task.op)) is not None
            }
            if not costs or self._gang.size == 1:
                continue
            alone = without_peers(plan)
            subject = self._subjects[self._keys[name]]
            ranks = self._gang.call(warmup.operations, subject, self._recipe.seeds[0], alone, OPERATION_STEPS)
            for task, (work, formula) in costs.items():
                points.setdefault(work, []).append((formula, mean(rank[task] for rank in ranks)))
        self._operations = {work: Curve.fitted(found) for work, found in points.items()}

    def inputs(self) -> Inputs:
        """Return what predictions compute with, from all rounds so far."""
        merged = {key: _over_rounds(_settled(seen)) for key, seen in self._seen.items()}
        # Watching shows the parts of a mixture, not that they are one.
        mixtures = self._recipe.model.mixtures
        profiles = {name: replace(merged[key].profile, mixtures=mixtures) for name, key in self._keys.items()}
        return Inputs(self._cluster(), profiles, {name: merged[key].update_s for name, key in self._keys.items()})

    def _cluster(self) -> Cluster:
        """Return the recipe's cluster with what this gang's collectives cost, alone and beside compute."""
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
        return replace(cluster, speed={}, sharing=times.sharing(SOURCE), overhead=overhead, operations=self._operations)

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
        ranks = self._gang.call(warmup.pace, subject, self._recipe.seeds[0], plans, rounds, steps)
        bare, engine, sending = ([self._crowd * median(rank[place]) for rank in ranks] for place in range(3))
        number = sum(isinstance(task.op, Collective) for task in sends.steps[0])
        return Overhead(_difference(engine, bare), _difference(sending, engine) / max(1, number), SOURCE)


def subject_of(recipe: Recipe, stack: str) -> Subject:
    """Return what a stack of `recipe` trains on what. The recipe names data: what cannot be run has been refused."""
    train = recipe.stacks[stack].train
    assert recipe.data is not None
    optimizer = {train.optimizer.name: train.optimizer.settings}
    rate = Schedule(train.learning_rate.shape, train.learning_rate.warmup, recipe.training_steps(stack))
    return Subject(recipe.model, recipe.data, recipe.batch_per_worker(stack), optimizer, train.precision, rate)


def _crowd(places: Sequence[tuple[str, tuple[int, ...], int]]) -> float:
    """Return how many ranks' threads share a core on the fullest machine, at least 1."""
    threads: dict[str, int] = {}
    cores: dict[str, set[int]] = {}
    for host, own, count in places:
        threads[host] = threads.get(host, 0) + count
        cores.setdefault(host, set()).update(own)
    return max(1.0, *(count / len(cores[host]) for host, count in threads.items()))


def _settled(rounds: list[Round]) -> list[Round]:
    """Return the rounds between the blocks, where there are any: before them the machine is still busy with what starts
    a run.
    """
    return rounds[1:] or rounds


def _over_rounds(seen: Sequence[Observation]) -> Observation:
    """Return one observation of all rounds: as long as they were on average."""
    together = merge(seen)
    scale = mean(one.step_s for one in seen) / together.step_s
    modules = together.profile.modules
    forward, backward = (
        scale * sum(getattr(module, name) or 0.0 for module in modules) for name in ("forward_s", "backward_s")
    )
    return replace(
        together,
        profile=together.profile.scaled_to(forward, backward),
        update_s=scale * together.update_s,
        step_s=scale * together.step_s,
    )


def _difference(more: Sequence[float], less: Sequence[float]) -> float:
    return max(0.0, median(after - before for after, before in zip(more, less, strict=True)))
