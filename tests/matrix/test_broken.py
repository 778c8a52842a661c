"""Broken surroundings, each for real: one line says what is wrong, the exit code and the end of the run are true. Long."""

from __future__ import annotations

import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from orch.errors import LostWorkerError, OrchError, RunError
from orch.experiment.execute import Execution
from orch.experiment.recovery import Recovery
from orch.gang import end_all, make_gang
from orch.recipe import load
from orch.runtime import session
from orch.track import state
from orch.track.directory import Facts, RunDirectory, find_all
from orch.track.tracker import Tracker
from tests.disks import can_mount, disk
from tests.experiment.conftest import TINY, Remembers

pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[2]
SMALL = (
    "cluster.devices_per_node=2",
    "stacks={plain: [wfbp], dear: [dear]}",
    "when={}",
    "seeds=[0]",
    "target=null",
    "measure={blocks: 3, steps: 3, warmup: 1}",
)
MEMORY = Path("/sys/fs/cgroup/memory")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipes") / "tiny.yaml"
    path.write_text(TINY, encoding="utf-8")
    return path


@pytest.fixture(autouse=True, scope="module")
def nothing_left() -> Iterator[None]:
    yield
    end_all()


def orch(recipe: Path, runs: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `orch run` on processes and return how it ended."""
    command = [sys.executable, "-m", "orch", "run", str(recipe), *SMALL, "--on", "processes", "--json", *words]
    clean = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    full = {**clean, "PYTHONPATH": str(ROOT), "ORCH_RUNS": str(runs), **environment}
    return subprocess.run(command, env=full, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def only(runs: Path) -> RunDirectory:
    (run,) = find_all(runs)
    return run


def prints(run: RunDirectory) -> dict[str, Any]:
    return {name: json.loads((folder / "parameters.json").read_text()) for name, folder in run.stack_folders().items()}


@pytest.fixture(scope="module")
def unbroken(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    runs = tmp_path_factory.mktemp("unbroken")
    done = orch(recipe, runs)
    assert done.returncode == 0, done.stderr
    return prints(only(runs))


def said(done: subprocess.CompletedProcess[str], text: str) -> list[str]:
    """Return the lines of standard error that hold `text`; a traceback is nowhere."""
    assert "Traceback" not in done.stderr + done.stdout
    return [line for line in done.stderr.splitlines() if text in line]


# -- disks ------------------------------------------------------------------------------------------------------------------


def fill(place: Path) -> None:
    """Leave no room on the disk of `place`."""
    try:
        with open(place / "ballast", "wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 12))
    except OSError:
        pass


@can_mount
def test_runs_on_a_disk_that_fills_up_are_done_and_whole(
    recipe: Path, tmp_path: Path, unbroken: dict[str, Any]
) -> None:
    with disk(tmp_path / "runs", "3m") as runs:
        done = _begun(recipe, runs, "fill(runs)")
        assert done.returncode == 0, done.stderr
        run = only(runs)
        assert (run.state and run.state.status, prints(run)) == ("done", unbroken)
        assert run.results["complete"] is True
        assert json.loads(done.stdout)["complete"] is True
        assert len(said(done, "No space left on device in ")) == 1


@can_mount
def test_runs_on_a_disk_without_even_the_room_kept_back_fail_and_can_be_resumed(
    recipe: Path, tmp_path: Path, unbroken: dict[str, Any]
) -> None:
    with disk(tmp_path / "runs", "8m") as runs:
        done = _begun(recipe, runs, "[path.unlink() for path in runs.glob('*/*/.reserve')]; fill(runs)")
        assert done.returncode == 3, done.stderr
        assert len(said(done, "the results could not be kept: No space left on device")) == 1
        (runs / "ballast").unlink()
        ended = state.settle(only(runs).path)
        assert ended is not None
        assert ended.status in ("failed", "killed")  # what nobody could write down is what whoever looks next finds
        again = orch(recipe, runs, "--resume", "last")
        assert again.returncode == 0, again.stderr
        assert prints(only(runs)) == unbroken


def _begun(recipe: Path, runs: Path, trouble: str) -> subprocess.CompletedProcess[str]:
    """Run, with `trouble` (Python) when training is about to begin."""
    words = [sys.executable, "-c", _BEGUN.format(trouble=trouble), str(runs)]
    words += ["run", str(recipe), *SMALL, "--on", "processes", "--json"]
    clean = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    full = {**clean, "PYTHONPATH": str(ROOT), "ORCH_RUNS": str(runs)}
    return subprocess.run(words, env=full, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


_BEGUN = """
import sys
from pathlib import Path
from orch.experiment import execute
from tests.matrix.test_broken import fill
runs, sys.argv = Path(sys.argv[1]), ["orch", *sys.argv[2:]]
train = execute.Execution._train
def troubled(self, *args):
    {trouble}
    return train(self, *args)
execute.Execution._train = troubled
from orch.cli import main
sys.exit(main())
"""


@can_mount
def test_a_disk_without_room_refuses_before_anything_starts(recipe: Path, tmp_path: Path) -> None:
    with disk(tmp_path / "runs", "1m") as runs:
        done = orch(recipe, runs)
        assert done.returncode == 2
        assert len(said(done, "cannot make a run under")) == 1
        assert list(find_all(runs)) == []


@can_mount
def test_a_read_only_disk_refuses_before_anything_starts(recipe: Path, tmp_path: Path) -> None:
    with disk(tmp_path / "runs", "1m", "ro") as runs:
        done = orch(recipe, runs)
        assert done.returncode == 2
        assert len(said(done, "Read-only file system; choose another place with --runs DIR")) == 1


@can_mount
def test_checkpoints_on_a_full_disk_are_said_once_and_training_goes_on(
    recipe: Path, tmp_path: Path, unbroken: dict[str, Any]
) -> None:
    with disk(tmp_path / "kept", "256k") as kept:
        done = orch(recipe, tmp_path / "runs", f"train.checkpoint={{every: 1, path: {kept}}}")
        assert done.returncode == 0, done.stderr
        assert len(said(done, "a checkpoint could not be kept in")) == 1
        assert "No space left on device" in done.stderr
        assert prints(only(tmp_path / "runs")) == unbroken
        whole = [marker.parent for marker in kept.rglob("complete.json")]
        assert all(len(list(folder.glob("rank*.safetensors"))) == 2 for folder in whole)
        assert list(kept.rglob(".tmp-*")) == []


# -- stores -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("postgresql://me:hunter2@127.0.0.1:1/db", "cannot be used"),
        ("http://127.0.0.1:1", "cannot be used"),
        ("sqlite:////proc/nowhere/mlflow.db", "cannot be used"),
    ],
)
def test_a_store_that_refuses_is_one_line_and_the_run_is_done(
    recipe: Path, tmp_path: Path, unbroken: dict[str, Any], uri: str, reason: str
) -> None:
    done = orch(recipe, tmp_path / "runs", MLFLOW_TRACKING_URI=uri)
    assert done.returncode == 0, done.stderr
    assert len(said(done, reason)) == 1
    assert "hunter2" not in done.stderr
    run = only(tmp_path / "runs")
    assert (run.state and run.state.status, prints(run)) == ("done", unbroken)


def test_a_sweep_whose_database_refuses_begins_nothing(recipe: Path, tmp_path: Path) -> None:
    sweep = "{trials: 2, over: {train.batch_per_worker: [4, 8]}, minimize: step_time,"
    command = [sys.executable, "-m", "orch", "sweep", str(recipe), *SMALL, "--simulate", "--json"]
    done = subprocess.run(
        [*command, f"sweep={sweep} storage: 'postgresql://me:hunter2@127.0.0.1:1/db'}}"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "ORCH_RUNS": str(tmp_path / "runs")},
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "the storage postgresql://" in done.stderr + done.stdout
    assert "E633" in done.stderr + done.stdout
    assert "hunter2" not in done.stderr + done.stdout
    assert list(find_all(tmp_path / "runs")) == []


@pytest.mark.parametrize("how", ["locked", "removed"])
def test_a_store_that_goes_away_meanwhile_is_one_line_and_can_be_made_anew(
    recipe: Path, tmp_path: Path, how: str
) -> None:
    runs = tmp_path / "runs"
    assert orch(recipe, runs).returncode == 0  # makes the store
    store = runs / ".index" / "mlflow.db"
    held = sqlite3.connect(store)
    try:
        if how == "locked":
            held.execute("BEGIN EXCLUSIVE")
        else:
            for path in store.parent.glob("mlflow.db*"):
                path.unlink()
            store.mkdir()
        done = orch(recipe, runs)
    finally:
        held.close()
        if how == "removed":
            store.rmdir()
    assert done.returncode == 0, done.stderr
    assert len(said(done, "cannot be used")) == 1
    assert {run.state.status for run in find_all(runs) if run.state} == {"done"}
    fixed = subprocess.run(
        [sys.executable, "-m", "orch", "runs", "fix", "--json"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "ORCH_RUNS": str(runs)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert fixed.returncode == 0, fixed.stderr
    assert json.loads(fixed.stdout)["synced"] == 2


# -- ranks ------------------------------------------------------------------------------------------------------------------


def join_group(worker: Any, rank: int, group: str) -> None:
    """Put `rank` into a memory group and have it want more than the group has."""
    if worker.rank == rank:
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
        held = bytearray(1 << 30)
        held[:: 1 << 12] = b"x" * len(held[:: 1 << 12])


def bound(worker: Any, rank: int) -> None:
    """Let `rank` have no more address space than it has now."""
    if worker.rank == rank:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def pid(worker: Any) -> int:
    return os.getpid()


class _Troubled:
    """A gang to whose rank 1 something happens when block number `at` is to be trained; once, or for each gang anew."""

    def __init__(self, gang: Any, trouble: Callable[[Any], None], at: int) -> None:
        self._gang, self._trouble, self._left = gang, trouble, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gang, name)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *failure: object) -> None:
        self._gang.close()

    def call(self, function: Any, *args: Any, **named: Any) -> list[Any]:
        if function is session.run_block:
            self._left -= 1
            if self._left == 0:
                self._trouble(self._gang)
        found: list[Any] = self._gang.call(function, *args, **named)
        return found


def through(
    recipe: Path, root: Path, trouble: Callable[[Any], None], *, again: bool = False
) -> tuple[RunDirectory, Remembers, OrchError | None]:
    """Run `recipe` with trouble in its fourth block; `again`: with every gang."""
    show, found = Remembers(), load(recipe, SMALL)
    facts = Facts(found.name, "measured", tuple(found.stacks), seeds=found.seeds)
    error: OrchError | None = None
    made: list[Any] = []

    def make() -> Any:
        made.append(_Troubled(make_gang("processes", 2), trouble, 4 if again or not made else -1))
        return made[-1]

    try:
        with Tracker(root, index=False).run(facts, found.resolved()) as log, ExitStack() as gangs:
            execution = Execution(found, gangs.enter_context(make()), log, show)
            Recovery(make, gangs, 1, show).through(execution)
            log.finish({"complete": True})
    except RunError as raised:
        error = raised
    return only(root), show, error


def test_a_rank_that_is_stopped_is_named_and_the_run_goes_on(
    recipe: Path, tmp_path: Path, unbroken: dict[str, Any]
) -> None:
    run, show, error = through(recipe, tmp_path, lambda gang: os.kill(gang.call(pid)[1], signal.SIGSTOP))
    assert error is None
    assert sum("rank 1 of 2 is stopped" in stage and "making" in stage for stage in show.stages) == 1
    assert (run.state and run.state.status, prints(run)) == ("done", unbroken)


@pytest.mark.skipif(not os.access(MEMORY, os.W_OK), reason="no memory group of version 1 can be made here")
def test_a_rank_that_the_kernel_kills_for_memory_is_said_to_be(
    recipe: Path, tmp_path: Path, unbroken: dict[str, Any]
) -> None:
    group = MEMORY / f"orch-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(200 << 20))

        def trouble(gang: Any) -> None:
            gang.call(join_group, 1, str(group))

        run, show, error = through(recipe, tmp_path / "once", trouble)
        assert error is None
        (line,) = [stage for stage in show.stages if "rank 1 of 2 died" in stage and "making" in stage]
        assert "(signal 9)" in line
        assert "the kernel was out of memory and killed for it" in line
        assert (run.state and run.state.status, prints(run)) == ("done", unbroken)
        run, _, error = through(recipe, tmp_path / "always", trouble, again=True)
        assert isinstance(error, LostWorkerError)
        assert error.exit_code == 3
        assert "the kernel was out of memory" in str(error)
        assert run.state is not None
        assert run.state.status == "failed"
    finally:
        group.rmdir()


def test_a_rank_without_address_space_is_an_error_of_one_line(recipe: Path, tmp_path: Path) -> None:
    run, _, error = through(recipe, tmp_path, lambda gang: gang.call(bound, 1))
    assert error is not None
    assert (error.code, error.exit_code) == ("E702", 3)
    assert "rank 1 of 2 raised" in error.message
    assert "memory" in error.message.lower() or "MemoryError" in error.message
    assert "\n" not in str(error)
    assert run.state is not None
    assert run.state.status == "failed"
    assert state.settle(run.path) == run.state
