"""The driver's view of a run: every way of leaving gives the true end, and no disk trouble ends a training."""

import errno
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest

from orch.errors import OrchError, RunError
from orch.track import directory, encoding, indexer, state, steps, tracker
from orch.track.directory import Facts
from orch.track.mounts import Mount
from orch.track.signals import Terminated
from orch.track.steps import Step, Value
from orch.track.tracker import Tracker
from tests.disks import can_mount, disk

FACTS = Facts("r", "measured", ("ddp", "dear+acp"), seeds=(0, 1))


@pytest.fixture
def warnings():
    return []


@pytest.fixture
def track(tmp_path, warnings):
    return Tracker(tmp_path / "runs", index=False, warn=warnings.append)


def only(tmp_path):
    (run,) = directory.find_all(tmp_path / "runs")
    return run


def test_a_run_from_start_to_end(track, tmp_path):
    with track.run(FACTS, {"lr": 0.1}, {"lr": "r.yaml:1:1"}, project=tmp_path) as run:
        assert state.read(run.path).status == "queued"
        run.start()
        assert state.read(run.path).status == "running"
        run.stack("ddp").log_steps([Step(1, 0, 2.0, 0.1, 0.1)])
        run.stack("ddp").log_steps([Step(2, 0, 1.0, 0.1, 0.2)])
        run.stack("dear+acp", seed=1).log_values([Value(2, 0.2, "accuracy", 0.5)])
        run.write("plan.json", {"tasks": []}, stack="ddp")
        run.write("figures/loss.csv", "a,b\n1,2\n")
        run.environment(threads=1, links={"beta": 1e-9})
        run.finish({"stacks": {"ddp": {"loss": {"last": 1.0}}}})
    made = directory.RunDirectory(run.path)
    assert made.state.status == "done"
    assert made.state.ended_s >= made.state.started_s
    assert [s.step for s in steps.read_steps(run.path / "stacks/ddp/steps.seed0.csv")] == [1, 2]
    assert steps.read_values(run.path / "stacks/dear+acp/values.seed1.csv")[0].value == 0.5
    assert encoding.read_json(run.path / "stacks/ddp/plan.json") == {"tasks": []}
    facts = encoding.read_json(run.path / "environment.json")
    assert (facts["threads"], facts["links"]) == (1, {"beta": 1e-9})
    assert facts["hardware"]["cores"] >= 1
    assert made.results == {"stacks": {"ddp": {"loss": {"last": 1.0}}}}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError("rank 2 died"), "failed"),
        (OrchError("no"), "failed"),
        (KeyboardInterrupt(), "interrupted"),
        (Terminated("SIGTERM"), "interrupted"),
        (SystemExit(3), "failed"),
        (SystemExit(130), "interrupted"),
        (GeneratorExit(), "failed"),
    ],
)
def test_every_exception_is_an_end_and_goes_on_up(track, tmp_path, error, status):
    def start_and_fail():
        with track.run(FACTS, {}) as run:
            run.start()
            raise error

    with pytest.raises(type(error)):
        start_and_fail()
    assert only(tmp_path).state.status == status


@pytest.mark.parametrize("error", [RuntimeError("a worker died"), RunError("no worker came"), KeyboardInterrupt()])
def test_a_run_that_failed_on_the_way_to_its_start_is_kept(track, tmp_path, error):
    with pytest.raises(type(error)), track.run(FACTS, {}):
        raise error
    assert not only(tmp_path).state.is_open


def test_what_the_user_has_to_correct_leaves_no_run(track, tmp_path):
    with pytest.raises(OrchError), track.run(FACTS, {}):
        raise OrchError("the cluster has 3 nodes")
    assert list((tmp_path / "runs").iterdir()) == []


def test_another_run_of_the_recipe_stays(track, tmp_path):
    with track.run(FACTS, {}) as kept:
        kept.finish({})
    with pytest.raises(OrchError), track.run(FACTS, {}):
        raise OrchError("the cluster has 3 nodes")
    assert only(tmp_path).path == kept.path


def test_a_finished_run_stays_done_whatever_follows(track, tmp_path):
    def finish_and_fail():
        with track.run(FACTS, {}) as run:
            run.finish({})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        finish_and_fail()
    assert only(tmp_path).state.status == "done"


def test_leaving_without_results_is_not_done(track):
    with track.run(FACTS, {}) as run:
        pass
    assert (state.read(run.path).status, state.read(run.path).reason) == ("failed", "left without results")


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGTERM, "interrupted"),
        (signal.SIGHUP, "interrupted"),
        (signal.SIGINT, "interrupted"),
        (signal.SIGKILL, "killed"),
    ],
)
def test_every_signal_leaves_a_true_end(tmp_path, number, status):
    code = (
        "import pathlib, sys, time\n"
        "from orch.track.tracker import *\n"
        "with Tracker(pathlib.Path(sys.argv[1]), index=False).run(Facts('r', 'measured', ('a',)), {}) as run:\n"
        "    run.start(); print('up', flush=True)\n"
        "    while True: time.sleep(1)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout.readline() == b"up\n"
    process.send_signal(number)
    process.wait()
    process.stdout.close()
    (run,) = directory.find_all(tmp_path)
    assert state.settle(run.path).status == status


def test_handlers_are_put_back(track):
    before = signal.getsignal(signal.SIGTERM)
    with track.run(FACTS, {}) as run:
        run.finish({})
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_disk_that_refuses_steps_is_said_once_and_the_run_goes_on(track, warnings, monkeypatch):
    def broken(self, lines):
        raise OSError(errno.EIO, "Input/output error")

    with track.run(FACTS, {}) as run:
        monkeypatch.setattr(steps.Appender, "append", broken)
        for step in range(3):
            run.stack("ddp").log_steps([Step(step, 0, 1.0, 0.1, 0.1)])
        run.finish({})
    assert len(warnings) == 1
    assert "cannot keep steps: Input/output error" in warnings[0]
    assert state.read(run.path).status == "done"


@can_mount
def test_a_full_disk_takes_the_last_steps_the_results_and_the_end(tmp_path, warnings):
    with (
        disk(tmp_path / "runs", "1536k"),
        Tracker(tmp_path / "runs", index=False, warn=warnings.append).run(FACTS, {}) as run,
    ):
        run.start()
        with suppress(OSError), open(tmp_path / "runs" / "ballast", "wb") as file:
            while True:
                file.write(bytes(1 << 12))
                file.flush()
        run.stack("ddp").log_steps([Step(step, 0, 1.0, 0.1, 0.1) for step in range(3)])
        run.write("figures/step_time.csv", "x" * (1 << 21))  # no room was kept for these
        run.finish({"stacks": {}})
        made = directory.RunDirectory(run.path)
        assert (made.state.status, made.results) == ("done", {"stacks": {}})
        assert [s.step for s in steps.read_steps(run.path / "stacks/ddp/steps.seed0.csv")] == [0, 1, 2]
        assert not (run.path / ".reserve").exists()
    assert [line.split(" (")[0].split(" in ")[0] for line in warnings] == [
        "tracking: No space left on device", "tracking: cannot write figures/step_time.csv: No space left on device",
    ]  # fmt: skip


@can_mount
def test_a_disk_without_room_for_a_run_is_the_users_error_and_nothing_is_left(tmp_path):
    with (
        disk(tmp_path / "runs", "512k"),
        pytest.raises(OrchError, match=r"cannot make a run under .*: No space left on device; choose another place"),
        Tracker(tmp_path / "runs", index=False).run(FACTS, {}),
    ):
        pass
    with disk(tmp_path / "runs", "512k"):
        assert os.listdir(tmp_path / "runs") == []


def test_results_that_cannot_be_kept_are_a_failed_run(track, tmp_path, monkeypatch):
    write = encoding.write_json

    def refuse(path, value):
        if path.name == "results.json":
            raise OSError(errno.EROFS, "Read-only file system")
        write(path, value)

    monkeypatch.setattr(encoding, "write_json", refuse)
    with track.run(FACTS, {}) as run:
        run.start()
        with pytest.raises(RunError, match=r"the results could not be kept: Read-only file system.*\[E812\]"):
            run.finish({"stacks": {}})
    assert only(tmp_path).state.status == "failed"
    assert only(tmp_path).state.reason == "the results could not be kept: Read-only file system"


def test_a_clock_that_is_set_changes_no_duration(track, tmp_path, monkeypatch):
    jumps = iter([0.0])
    now = time.time
    with track.run(FACTS, {}) as run:
        monkeypatch.setattr(state.time, "time", lambda: now() + next(jumps, -86_400.0))
        run.start()
        run.finish({})
    found = only(tmp_path).state
    assert 0.0 <= found.duration_s < 60.0
    assert found.ended_s < found.started_s
    killed = replace(found, ran_s=None, status="killed")
    assert killed.duration_s == 0.0


def test_a_root_that_is_a_file_is_the_users_error(tmp_path):
    (tmp_path / "runs").write_text("")
    with (
        pytest.raises(OrchError, match=r"cannot make a run under .*choose another place"),
        Tracker(tmp_path / "runs", index=False).run(FACTS, {}),
    ):
        pass


def test_a_stack_the_run_does_not_know_is_an_error(track):
    with pytest.raises(KeyError), track.run(FACTS, {}) as run:
        run.stack("other")


def test_off_leaves_nothing(tmp_path):
    with Tracker(tmp_path, enabled=False).run(FACTS, {}) as run:
        run.start()
        run.stack("ddp").log_steps([Step(1, 0, 2.0, 0.1, 0.1)])
        run.stack("ddp").log_values([])
        run.environment(threads=1)
        run.write("a", "b")
        run.finish({})
    assert (run.path, run.rank_log(0), os.listdir(tmp_path)) == (None, None, [])


def test_an_index_that_cannot_be_used_is_said_once_and_the_run_is_done(tmp_path, warnings, monkeypatch):
    def refuse(*_, **__):
        raise indexer.IndexUnavailableError("no route to host")

    monkeypatch.setattr(indexer, "available", lambda: True)
    monkeypatch.setattr(indexer, "Indexer", refuse)
    track = Tracker(tmp_path / "runs", uri="http://me:hunter2@host:5000", warn=warnings.append)
    for _ in range(2):
        with track.run(FACTS, {}) as run:
            run.finish({})
        assert run.parent_run_id is None
        assert state.read(run.path).status == "done"
    assert len(warnings) == 1
    assert "cannot be used (no route to host)" in warnings[0]
    assert "hunter2" not in warnings[0]


@pytest.mark.parametrize(("error", "waits"), [(KeyboardInterrupt(), False), (RuntimeError("rank 2 died"), True)])
def test_whoever_interrupts_does_not_wait_for_the_index(tmp_path, monkeypatch, error, waits):
    made = []

    class Keeps:
        leaves_in_s = 5.0

        def __init__(self, root, store, *, background):
            made.append(self)

        def watch(self, run):
            self.run = run

    monkeypatch.setattr(indexer, "available", lambda: True)
    monkeypatch.setattr(indexer, "Indexer", Keeps)

    def start_and_end():
        with Tracker(tmp_path / "runs").run(FACTS, {}) as run:
            run.start()
            raise error

    with pytest.raises(type(error)):
        start_and_end()
    assert [(one.run, bool(one.leaves_in_s)) for one in made] == [(only(tmp_path).path, waits)]


def test_a_store_on_a_network_file_system_is_said_once(tmp_path, warnings, monkeypatch):
    monkeypatch.setattr(indexer, "available", lambda: True)
    monkeypatch.setattr(
        indexer, "Indexer", lambda *_, **__: SimpleNamespace(watch=print, sync=lambda *_: "1", close=print)
    )
    monkeypatch.setattr(tracker, "mount_of", lambda path: Mount("/home", "nfs4"))
    track = Tracker(tmp_path / "runs", warn=warnings.append)
    for _ in range(2):
        with track.run(FACTS, {}) as run:
            run.finish({})
    assert len(warnings) == 1
    assert "mlflow.db lies on nfs4, where sqlite's locks are not sure; MLFLOW_TRACKING_URI=sqlite:" in warnings[0]


def test_without_mlflow_there_is_no_index_and_no_word(tmp_path, warnings, monkeypatch):
    monkeypatch.setattr(indexer, "available", lambda: False)
    with Tracker(tmp_path / "runs", warn=warnings.append).run(FACTS, {}) as run:
        run.finish({})
    assert (warnings, run.parent_run_id) == ([], None)
    assert not (tmp_path / "runs" / ".index").exists()


def test_a_finished_run_knows_its_entry(tmp_path, warnings, store_copy):
    mlflow = pytest.importorskip("mlflow")
    store = store_copy()
    track = Tracker(tmp_path / "runs", warn=warnings.append)
    with track.run(FACTS, {"lr": 0.1}) as run:
        run.finish({"stacks": {"ddp": {"accuracy": 0.5}}})
    track.close()
    entry = mlflow.MlflowClient(store.uri).get_run(run.parent_run_id)
    assert (entry.info.status, entry.data.params, warnings) == ("FINISHED", {"lr": "0.1"}, [])
    assert encoding.read_json(run.path / "index.json")["parent_run_id"] == run.parent_run_id
