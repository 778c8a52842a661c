"""A stack of a finished run as it lies in its directory: block times, plan, where its time went, what it was run with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from orch.cluster import Cluster
from orch.cluster.build import build
from orch.cluster.spec import ClusterSpec
from orch.errors import OrchError, did_you_mean, quoted
from orch.experiment.quality import block_time_s
from orch.plan import Plan, from_json
from orch.track import directory, encoding, query
from orch.track.directory import RunDirectory
from orch.track.steps import read_steps


@dataclass(frozen=True)
class StoredRun:
    """A run directory with a stack to compare in it. What is missing or damaged reads as empty."""

    directory: RunDirectory

    @property
    def id(self) -> str:
        """The run's id."""
        return self.directory.id

    @cached_property
    def results(self) -> Mapping[str, Any]:
        """What `results.json` says."""
        return self.directory.results

    @cached_property
    def recipe(self) -> Mapping[str, Any]:
        """The resolved recipe."""
        return directory.read_recipe(self.directory)

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """What `run.json` says."""
        return self.directory.facts

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        """What `environment.json` says."""
        return encoding.read_json(self.directory.path / "environment.json")

    @property
    def mode(self) -> str:
        """`simulated`, `emulated` or `measured`."""
        return str(self.results.get("mode") or self.facts.get("mode", ""))

    @property
    def simulated(self) -> bool:
        """Whether nothing of it was run."""
        return self.mode == "simulated"

    @property
    def baseline(self) -> str:
        """The stack that the run compared the others with."""
        return str(self.facts.get("baseline") or self.recipe.get("baseline") or next(iter(self.stacks), ""))

    @property
    def seeds(self) -> list[int]:
        """The seeds it trained from."""
        return [int(seed) for seed in self.facts.get("seeds", [0])]

    @cached_property
    def stacks(self) -> dict[str, StoredStack]:
        """Its stacks, by name, in the recipe's order."""
        return {name: StoredStack(self, name, path) for name, path in self.directory.stack_folders().items()}

    def stack(self, name: str) -> StoredStack:
        """Return a stack of it. Raises OrchError E641 for one it does not have."""
        if name not in self.stacks and "trials" in self.results:
            place = self.directory.path / "trials"
            hint = f"of a sweep that measured, give one of {place}/*; confirmed is the best beside the baseline"
            raise OrchError(f"run {self.id} is a sweep, which has trials and no stacks", code="E641", hint=hint)
        if name not in self.stacks:
            hint = did_you_mean(name, self.stacks) or f"its stacks: {', '.join(self.stacks)}"
            raise OrchError(f"run {self.id} has no stack {quoted(name)}", code="E641", hint=hint)
        return self.stacks[name]

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster as the recipe describes it. Raises OrchError E642 where the directory does not hold it."""
        described = dict(self.recipe.get("cluster") or {})
        name = str(described.pop("name", "cluster"))
        try:
            return build(ClusterSpec.model_validate(described), name)
        except ValueError:
            raise OrchError(f"run {self.id} does not say what cluster it was for", code="E642") from None

    @property
    def workers(self) -> int:
        """World size."""
        return int(self.results.get("workers") or self.cluster.world_size)

    @property
    def sharers(self) -> int:
        """Workers that share each sample."""
        return int((self.recipe.get("parallel") or {}).get("tensor") or 1)

    def batch_per_worker(self, stack: str) -> int:
        """Return the samples a worker takes in a step of `stack`."""
        train = dict(self.recipe.get("train") or {})
        change = ((self.recipe.get("when") or {}).get(stack) or {}).get("train") or {}
        train.update(change)
        if "batch_per_worker" in change:
            train.pop("global_batch", None)
        return int(
            train.get("batch_per_worker") or int(train.get("global_batch") or 0) // max(1, self.workers // self.sharers)
        )


@dataclass(frozen=True)
class StoredStack:
    """One stack of a run."""

    run: StoredRun
    name: str
    folder: Path

    @property
    def label(self) -> str:
        """Run and stack, as the command line takes them."""
        return f"{self.run.id}:{self.name}"

    @cached_property
    def result(self) -> Mapping[str, Any]:
        """What the run's results say of it; empty for a run that did not get there."""
        stacks = self.run.results.get("stacks")
        return stacks.get(self.name, {}) if isinstance(stacks, dict) else {}

    @cached_property
    def plan(self) -> Plan:
        """Its plan. Raises OrchError E642 where the directory does not hold it."""
        try:
            return from_json(encoding.read_json(self.folder / "plan.json"))
        except (KeyError, TypeError, ValueError):
            raise OrchError(
                f"run {self.run.id} does not hold the plan of stack {quoted(self.name)}", code="E642"
            ) from None

    @cached_property
    def block_times_s(self) -> dict[tuple[int, int], float]:
        """Step time [s] of every finished block, by (seed, block); empty for a simulated run."""
        found: dict[tuple[int, int], float] = {}
        length = int((self.run.recipe.get("measure") or {}).get("steps", 0))
        for seed in self.run.seeds if not self.run.simulated else ():
            times: dict[int, list[float]] = {}
            for step in read_steps(self.folder / f"steps.seed{seed}.csv"):
                if step.block is not None and step.step_time_s is not None:
                    times.setdefault(step.block, []).append(step.step_time_s)
            for block, steps in times.items():
                if len(steps) >= length:
                    found[seed, block] = block_time_s(steps, self.plan.period)
        return found

    @property
    def step_time_s(self) -> float:
        """Median over blocks, or the prediction of a simulated run. Raises OrchError E643 where there is neither."""
        if self.block_times_s:
            return math.exp(median(math.log(time) for time in self.block_times_s.values()))
        if self.run.simulated and self.result:
            return float(self.result["step_time_s"]["median"])
        raise OrchError(
            f"stack {quoted(self.name)} of run {self.run.id} has no finished block",
            code="E643",
            hint=f"orch runs {self.run.id} says how it ended",
        )

    @property
    def breakdown_s(self) -> Mapping[str, float]:
        """Seconds a step by class; empty where the run recorded none."""
        return self.result.get("breakdown_s") or {}

    @property
    def lossless(self) -> bool | None:
        """Whether it equals plain S-SGD; None where the run does not say."""
        found = self.result.get("lossless")
        return None if found is None else bool(found)


def open_run(root: Path, key: str) -> StoredRun:
    """Return the run that `key` names under `root`: `last`, an id, the beginning of one, or the path of a run's directory.

    Raises OrchError E802, E803.
    """
    if "/" in key and (Path(key) / "run.json").is_file():  # a copied directory, wherever it lies
        return StoredRun(RunDirectory(Path(key).resolve()))
    return StoredRun(query.find(root, key))


def chosen(root: Path, keys: Sequence[str]) -> list[StoredRun | StoredStack]:
    """Return what each of `keys` names: RUN is a whole run, RUN:STACK one of its stacks."""
    runs: dict[str, StoredRun] = {}
    found: list[StoredRun | StoredStack] = []
    for key in keys:
        name, colon, stack = key.partition(":")
        run = open_run(root, name)
        run = runs.setdefault(str(run.directory.path), run)
        found.append(run.stack(stack) if colon else run)
    return found
