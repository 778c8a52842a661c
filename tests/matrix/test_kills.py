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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest

from orch.errors import OrchError
from orch.experiment.execute import Execution
from orch.experiment.recovery import Recovery, smaller
from orch.experiment.show import Quiet, Show
from orch.gang import end_all, make_gang
from orch.gang.gang import WorkersGang
from orch.recipe import Recipe, load
from orch.track.directory import Facts, find_all
from orch.track.state import settle
from orch.track.steps import read_values
from orch.track.tracker import Tracker
from tests.experiment.conftest import Remembers
from tests.gang.emulation import can_emulate

pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[2]
RUNS, KILLS, FIFTY = 12, 5, 50
LOG = logging.getLogger(__name__)
KILLED: list[int] = []
RECIPE = """\
orch: 1
name: mortal
model: resnet-digits
data: digits8
train: {batch_per_worker: 8, optimizer: {sgd: {lr: 0.05, momentum: 0.9}}, checkpoint: {every: 8}}
cluster: {use: local-4, devices_per_node: 2}
stacks:
  ddp: [torch-ddp]
  merged: [mg-wfbp]
  dear: [dear]
  acp: [mg-wfbp, acp-sgd]
  power: [bucketed, power-sgd]
  topk: [top-k]
baseline: ddp
measure: {blocks: 3, steps: 8, warmup: 2}
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


def run(recipe: Recipe, root: Path, killer: Killer | None, show: Show | None = None) -> tuple[dict[str, Any], Any]:
    """Run `recipe` on processes; return the parameters' fingerprints by stack, and the outcome."""
    facts = Facts(recipe.name, "measured", tuple(recipe.stacks), seeds=recipe.seeds)
    with Tracker(root, index=False).run(facts, recipe.resolved()) as log, ExitStack() as gangs:

        def make() -> WorkersGang:
            gang = make_gang("processes", 2)
            assert isinstance(gang, WorkersGang)
            if killer is not None:
                killer.gang = gang
            return gang

        show = show or Quiet()
        execution = Execution(recipe, gangs.enter_context(make()), log, show)
        with killer.at_work() if killer is not None else nullcontext():
            outcome = Recovery(make, gangs, KILLS, show).through(execution)
        log.finish({})
        assert log.path is not None
        prints = {
            name: json.loads((log.path / "stacks" / name / "parameters.json").read_text()) for name in recipe.stacks
        }
        return prints, outcome


@pytest.fixture(scope="module")
def unbroken(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], float]:
    run(load(recipe), tmp_path_factory.mktemp("first"), None)  # what loads only once is no part of the time
    took: list[float] = []
    for number in range(2):  # in a busy minute of the machine moments would be drawn beyond the other runs' end
        begin = time.monotonic()
        prints, _ = run(load(recipe), tmp_path_factory.mktemp(f"unbroken{number}"), None)
        took.append(time.monotonic() - begin)
    return prints, min(took)


@pytest.mark.parametrize("seed", range(RUNS))
def test_kills_at_random_moments_change_no_parameter(
    recipe: Path, tmp_path: Path, unbroken: tuple[dict[str, Any], float], seed: int
) -> None:
    prints, whole_s = unbroken
    killer, show, begin = Killer(random.Random(seed), 0.5 * whole_s), Remembers(), time.monotonic()
    found, outcome = run(load(recipe), tmp_path, killer, show)
    losses = [stage for stage in show.stages if "making the gang anew" in stage]
    LOG.info(
        "seed %d: %d kills in %.0f s (%.0f s without)", seed, len(killer.killed), time.monotonic() - begin, whole_s
    )
    for loss in losses:
        LOG.info("  %s", loss.partition("; ")[0])
    KILLED.append(len(killer.killed))
    assert found == prints
    assert killer.killed
    # Two kills at once are one loss, and one of an idle worker is noticed with the next call.
    assert 1 <= len(losses) <= len(killer.killed)
    assert {len(trained.losses) for trained in outcome.trained} == {load(recipe).measure.total}
    assert not any("does not repeat itself" in note for note in outcome.notes)


def test_that_were_fifty() -> None:
    assert len(KILLED) < RUNS or sum(KILLED) >= FIFTY


FEWER = """\
orch: 1
name: fewer
model: {use: mlp}
data: digits8
train: {global_batch: 24, optimizer: {sgd: {lr: 0.01}}, checkpoint: {every: 4}}
cluster:
  use: local-4
  nodes: 3
  devices_per_node: 1
  links: {inter: {alpha: 400us, bandwidth: 200Mbit, per: node, source: a test}}
stacks: {plain: [wfbp], merged: [mg-wfbp]}
baseline: plain
measure: {blocks: 4, steps: 4, warmup: 2}
recover: {min_nodes: 2}
"""


def test_fewer_nodes_train_what_all_would_have(tmp_path: Path) -> None:
    path = tmp_path / "fewer.yaml"
    path.write_text(FEWER, encoding="utf-8")
    recipe = load(path)
    losses = []
    for kills in (0, 1):
        facts = Facts(recipe.name, "measured", tuple(recipe.stacks), seeds=recipe.seeds)
        with Tracker(tmp_path / "runs", index=False).run(facts, recipe.resolved()) as log, ExitStack() as gangs:
            gang = gangs.enter_context(make_gang("processes", 3))
            assert isinstance(gang, WorkersGang)
            execution = Execution(recipe, gang, log, Quiet())
            if kills:
                assert gang._workers is not None
                execution._block = _dying(execution._block, gang._workers.pids[2])  # type: ignore[method-assign, attr-defined]
            outcome = Recovery(_never, gangs, 1, Quiet(), smaller(recipe, _two)).through(execution)
            log.finish({})
            losses.append({name: _judged(log.path, name) for name in recipe.stacks})
    assert sum("trains on with 2 nodes, untimed" in note for note in outcome.notes) == 1
    assert {len(trained.block_times_s) for trained in outcome.trained} == {2}
    for name, whole in losses[0].items():
        assert len(losses[1][name]) == len(whole) == 5
        assert losses[1][name] == pytest.approx(whole, rel=1e-4)


def _dying(block: Callable[..., None], pid: int) -> Callable[..., None]:
    """Return what trains a block as `block` does, and once kills `pid` before it."""
    left = [pid]

    def train(trained: Any, *args: Any) -> None:
        if left and trained.stack == "merged" and len(trained.losses) == 10:
            os.kill(left.pop(), signal.SIGKILL)
        block(trained, *args)

    return train


def _never() -> Any:
    raise OrchError("3 workers want 3 CPUs; the cluster has 2 on 2 nodes", code="E712")


def _two(recipe: Recipe) -> Any:
    return make_gang("processes", recipe.cluster.world_size)


def _judged(run: Path | None, stack: str) -> list[float]:
    assert run is not None
    values = read_values(run / "stacks" / stack / "values.seed0.csv")
    return [value.value for value in values if value.name == "val_loss"]


def command(on: str, *words: str) -> list[str]:
    """Return the command of `orch run`, under torchrun where that is the way."""
    start = [sys.executable, "-m"]
    if on == "torchrun":
        start += ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    return [*start, "orch", "run", *words, "--on", on, "--json"]


def surroundings(runs: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "ORCH_RUNS": str(runs), "OMP_NUM_THREADS": "1"}


def orch(recipe: Path, runs: Path, on: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Run a recipe to its end."""
    return subprocess.run(
        command(on, str(recipe), *overrides),
        env=surroundings(runs), cwd=ROOT, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip


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


def test_where_a_process_of_torchrun_dies_the_run_ends_and_can_be_resumed(recipe: Path, tmp_path: Path) -> None:
    whole = prints_of(orch(recipe, tmp_path / "whole", "torchrun", *FEW))
    begun = command("torchrun", str(recipe), *FEW)
    with subprocess.Popen(
        begun,
        env=surroundings(tmp_path / "runs"),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as agent:
        assert agent.stderr is not None
        next(line for line in agent.stderr if "measuring layer times" in line)
        ranks = [one for one in psutil.Process(agent.pid).children() if one.environ().get("RANK") == "1"]
        ranks[0].kill()
        agent.communicate(timeout=120)
    assert agent.returncode != 0
    (run,) = find_all(tmp_path / "runs")
    ended = settle(run.path)
    assert ended is not None
    assert ended.status in ("failed", "interrupted", "killed")
    again = subprocess.run(
        command("torchrun", "--resume", "last"),
        env=surroundings(tmp_path / "runs"), cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert prints_of(again) == whole


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
