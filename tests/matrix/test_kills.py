"""Workers killed at fifty random moments over six stacks, and on every way to reach workers: the same parameters. Long."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from orch.experiment.execute import Execution
from orch.experiment.recovery import Recovery
from orch.experiment.show import Quiet
from orch.gang import end_all, make_gang
from orch.gang.gang import WorkersGang
from orch.recipe import Recipe, load
from orch.track.directory import Facts
from orch.track.tracker import Tracker
from tests.gang.emulation import can_emulate

pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[2]
RUNS, KILLS = 10, 5
LOG = logging.getLogger(__name__)
RECIPE = """\
orch: 1
name: mortal
model: resnet-digits
data: digits8
train: {batch_per_worker: 8, optimizer: {sgd: {lr: 0.05, momentum: 0.9}}, checkpoint: {every: 4}}
cluster: {use: local-4, devices_per_node: 2}
stacks:
  ddp: [torch-ddp]
  merged: [mg-wfbp]
  dear: [dear]
  acp: [mg-wfbp, acp-sgd]
  power: [bucketed, power-sgd]
  topk: [top-k]
baseline: ddp
measure: {blocks: 3, steps: 4, warmup: 2}
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipes") / "mortal.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


class Killer:
    """Kills workers of whichever gang is there, each a drawn share of a whole run after the one before."""

    def __init__(self, draw: random.Random, whole_s: float) -> None:
        self.killed: list[tuple[float, int]] = []
        self.gang: WorkersGang | None = None
        self._plan = [(draw.random() * whole_s, draw.randrange(2)) for _ in range(KILLS)]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()

    def _work(self) -> None:
        for after_s, rank in self._plan:
            begin = time.monotonic()
            # The moment is what is tried, so nothing is waited for but the time itself.
            if self._over.wait(after_s):
                return
            while not self._kill(rank) and not self._over.wait(0.05):
                pass  # between two gangs there is nobody to kill
            self.killed.append((time.monotonic() - begin, rank))

    def _kill(self, rank: int) -> bool:
        workers = None if self.gang is None else self.gang._workers
        try:
            os.kill(workers.pids[rank], signal.SIGKILL)  # type: ignore[union-attr]
        except (ProcessLookupError, AttributeError):
            return False
        return True


def run(recipe: Recipe, root: Path, killer: Killer | None) -> tuple[dict[str, Any], Any]:
    """Run `recipe` on processes; return the parameters' fingerprints by stack, and the outcome."""
    facts = Facts(recipe.name, "measured", tuple(recipe.stacks), seeds=recipe.seeds)
    with Tracker(root, index=False).run(facts, recipe.resolved()) as log, ExitStack() as gangs:

        def make() -> WorkersGang:
            gang = make_gang("processes", 2)
            assert isinstance(gang, WorkersGang)
            if killer is not None:
                killer.gang = gang
            return gang

        execution = Execution(recipe, gangs.enter_context(make()), log, Quiet())
        with ExitStack() as killing:
            if killer is not None:
                killing.enter_context(killer.at_work())
            outcome = Recovery(make, gangs, KILLS, Quiet()).through(execution)
        log.finish({})
        assert log.path is not None
        prints = {
            name: json.loads((log.path / "stacks" / name / "parameters.json").read_text()) for name in recipe.stacks
        }
        return prints, outcome


@pytest.fixture(scope="module")
def unbroken(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], float]:
    run(load(recipe), tmp_path_factory.mktemp("first"), None)  # what loads only once is no part of the time
    begin = time.monotonic()
    prints, _ = run(load(recipe), tmp_path_factory.mktemp("unbroken"), None)
    return prints, time.monotonic() - begin


@pytest.mark.parametrize("seed", range(RUNS))
def test_kills_at_random_moments_change_no_parameter(
    recipe: Path, tmp_path: Path, unbroken: tuple[dict[str, Any], float], seed: int
) -> None:
    prints, whole_s = unbroken
    killer = Killer(random.Random(seed), whole_s / KILLS * 2)
    found, outcome = run(load(recipe), tmp_path, killer)
    losses = sum("went on with new workers after a loss" in note for note in outcome.notes)
    times = ", ".join(f"{after_s:.1f}" for after_s, _ in killer.killed)
    LOG.info("seed %d: %d kills, %d losses, after %s s", seed, len(killer.killed), losses, times)
    assert found == prints
    assert killer.killed
    assert {len(trained.losses) for trained in outcome.trained} == {load(recipe).measure.total}
    assert not any("does not repeat itself" in note for note in outcome.notes)


def orch(recipe: Path, runs: Path, on: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Run `orch run`, under torchrun where that is the way."""
    command = [sys.executable, "-m"]
    if on == "torchrun":
        command += ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ORCH_RUNS": str(runs), "OMP_NUM_THREADS": "1"}
    words = ["orch", "run", str(recipe), *overrides, "--on", on, "--json"]
    return subprocess.run(
        [*command, *words], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False
    )


def prints_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    stacks = Path(json.loads(done.stdout)["run_dir"]) / "stacks"
    return {path.name: json.loads((path / "parameters.json").read_text()) for path in stacks.iterdir()}


FEW = ("stacks={dear: [dear], acp: [mg-wfbp, acp-sgd]}", "baseline=dear")
EMULATED = "cluster={use: emulated-4x200mbit, nodes: 2}"
WAYS: list[Any] = ["processes", "local", "torchrun", pytest.param("emulate", marks=can_emulate)]


@pytest.mark.parametrize("on", WAYS)
def test_a_killed_worker_is_made_anew_wherever_workers_are(recipe: Path, tmp_path: Path, on: str) -> None:
    where = (EMULATED,) if on == "emulate" else ()
    whole = prints_of(orch(recipe, tmp_path / "whole", on, *where, *FEW))
    killed = orch(recipe, tmp_path / "killed", on, *where, *FEW, "faults=[{kill_rank: {rank: 1, step: 7}}]")
    assert prints_of(killed) == whole
    assert killed.stderr.count("making the gang anew") == 2
    assert "died in step 7" in killed.stderr


@can_emulate
@pytest.mark.parametrize(
    ("lasts_s", "said"), [(3, "the link of node 1 is cut for 3 s at step 7"), (30, "making the gang anew")]
)
def test_a_cut_is_waited_out_or_ends_like_a_dead_node(recipe: Path, tmp_path: Path, lasts_s: int, said: str) -> None:
    whole = prints_of(orch(recipe, tmp_path / "whole", "emulate", EMULATED, *FEW))
    fault = f"faults=[{{cut_link: {{node: 1, step: 7, lasts: {lasts_s}s, stack: acp}}}}]"
    cut = orch(recipe, tmp_path / "cut", "emulate", EMULATED, *FEW, fault)
    assert prints_of(cut) == whole
    assert said in cut.stderr
    assert ("making the gang anew" in cut.stderr) == (lasts_s > 10)


@pytest.fixture(autouse=True, scope="module")
def nothing_left() -> Iterator[None]:
    yield
    end_all()
