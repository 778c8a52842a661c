"""A small recipe, and what running it once in real processes found out: made once, looked at by many tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orch.experiment.execute import Execution
from orch.experiment.outcome import Outcome
from orch.experiment.show import Quiet
from orch.gang import make_gang
from orch.recipe import Recipe, load
from orch.track.directory import Facts
from orch.track.settings import RUNS_VARIABLE, STORE_VARIABLE
from orch.track.tracker import Tracker

TINY = """\
orch: 1
name: tiny
model: resnet-digits
data: digits8
train:
  batch_per_worker: 8
  optimizer: {sgd: {lr: 0.05}}
cluster: local-4
stacks:
  plain: [wfbp]
  merged: [mg-wfbp]
  small: [mg-wfbp, acp-sgd]
baseline: plain
when: {small: {train: {optimizer: {sgd: {lr: 0.02}}}}}
measure: {blocks: 2, steps: 3, warmup: 1}
seeds: [0, 1]
target: {metric: loss, reach: 100}
"""
PAIR = "cluster.devices_per_node=2"
ONE = "cluster.devices_per_node=1"


@pytest.fixture(scope="session", autouse=True)
def _own_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(STORE_VARIABLE, raising=False)
        patch.setenv(RUNS_VARIABLE, str(tmp_path_factory.mktemp("runs")))
        yield


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Recipe]:
    """Load the small recipe with overrides; it has 2 workers unless they say otherwise."""
    path = tmp_path_factory.mktemp("recipes") / "tiny.yaml"
    path.write_text(TINY, encoding="utf-8")

    def recipe(*overrides: str, workers: int = 2) -> Recipe:
        return load(path, [f"cluster.devices_per_node={workers}", *overrides])

    return recipe


class Remembers(Quiet):
    """Remembers what a run had to say."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.steps = 0
        self.seen: list[tuple[str, int, float]] = []

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def begin(self, steps: int) -> None:
        self.steps = steps

    def progress(self, where: str, steps: int, loss: float, samples_per_s: float) -> None:
        self.seen.append((where, steps, samples_per_s))


@dataclass(frozen=True)
class Finished:
    """A run that went well."""

    outcome: Outcome
    path: Path
    show: Remembers


def run_of(recipe: Recipe, root: Path, change: Callable[[Any], Any] = lambda gang: gang) -> Finished:
    """Run `recipe` in real processes; `change` may wrap the gang."""
    show = Remembers()
    facts = Facts(recipe.name, "measured", tuple(recipe.stacks), seeds=recipe.seeds)
    with (
        Tracker(root, index=False).run(facts, recipe.resolved()) as run,
        make_gang("processes", recipe.cluster.world_size) as gang,
    ):
        run.start()
        outcome = Execution(recipe, change(gang), run, show).all()
        run.finish({})
        assert run.path is not None
        return Finished(outcome, run.path, show)


@pytest.fixture(scope="session")
def finished(tiny: Callable[..., Recipe], tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Return the run of the small recipe."""
    return run_of(tiny(), tmp_path_factory.mktemp("runs"))
