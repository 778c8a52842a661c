"""Stopping, removing and mending: with real processes, and the truth afterwards."""

import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from orch.errors import OrchError
from orch.track import directory, indexer, state, upkeep
from orch.track.settings import store_of

DRIVER = """
import pathlib, signal, sys, time
from orch.track.tracker import *
if sys.argv[2] == "deaf": signal.signal(signal.SIGTERM, signal.SIG_IGN)
with Tracker(pathlib.Path(sys.argv[1]), index=False).run(Facts("r", "measured", ("a",)), {}) as run:
    run.start()
    print("up", flush=True)
    while True: time.sleep(0.05)  # pause() would sleep through a signal that comes a moment too early
"""


@pytest.fixture
def drive(tmp_path):
    """Starts real drivers; none of them outlives the test."""
    started = []

    def start(kind="hearing"):
        command = [sys.executable, "-c", DRIVER, str(tmp_path / "runs"), kind]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        started.append(process)
        assert process.stdout.readline() == b"up\n"
        return list(directory.find_all(tmp_path / "runs"))[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def store(tmp_path):
    return store_of(tmp_path / "runs")


def test_stopping_waits_and_tells_the_true_end(drive):
    run = drive()
    assert upkeep.stop(run).status == "interrupted"
    assert run.state.reason == "SIGTERM"
    assert run.state.owner.alive is False


def test_a_driver_that_does_not_listen_is_named_and_killed_only_by_force(drive):
    run = drive("deaf")
    with pytest.raises(OrchError, match=r"has not stopped in 0.2 s; wait, or kill it with --force"):
        upkeep.stop(run, 0.2)
    assert run.state.owner.alive is True
    assert upkeep.stop(run, 0.2, force=True).status == "killed"


def test_stopping_what_is_over_or_dead_only_tells_how_it_ended(make, drive):
    assert upkeep.stop(make().to("running", "done")).status == "done"
    gone = make().to("running")
    state.write(gone.path, replace(gone.state, owner=replace(gone.state.owner, born="1")))
    assert upkeep.stop(gone).status == "killed"


def test_a_pid_that_passed_to_another_process_is_not_signalled(monkeypatch):
    sent = []
    monkeypatch.setattr(upkeep.os, "kill", lambda *args: sent.append(args))
    here = state.new("running")
    upkeep._signal(replace(here, owner=replace(here.owner, born="1")), signal.SIGTERM)
    assert sent == [(here.owner.pid, 0)]  # a look, no signal


def test_a_run_elsewhere_and_a_damaged_one_cannot_be_stopped(make):
    run = make().to("running")
    state.write(run.path, replace(run.state, owner=state.Owner("far", "0", 1, "1")))
    with pytest.raises(OrchError, match="runs on far; stop it there"):
        upkeep.stop(run)
    (run.path / "state.json").write_text("")
    with pytest.raises(OrchError, match=r"no readable state.json"):
        upkeep.stop(run)


def test_a_running_run_is_not_removed_unless_forced(drive, store):
    run = drive()
    with pytest.raises(OrchError, match="is running; stop it first, or use --force"):
        upkeep.remove([run], store, pytest.fail)
    assert run.state.status == "running"
    upkeep.remove([run], store, pytest.fail, force=True)
    assert not run.path.parent.exists()


def test_of_several_none_is_removed_when_one_is_not_over(make, store):
    over, running = make().to("running", "done"), make().to("running")
    with pytest.raises(OrchError, match="is running"):
        upkeep.remove([over, running], store, pytest.fail)
    assert over.path.exists()


def test_removing_leaves_the_other_runs(make, store):
    first, second = (make().to("running", "done") for _ in range(2))
    upkeep.remove([first], store, pytest.fail)
    assert list(directory.find_all(store.index_dir.parent)) == [second]


def test_removing_takes_the_entries_along(make, store_copy):
    mlflow = pytest.importorskip("mlflow")
    store = store_copy()
    run, other = (make("same").to("running", "done", results={}) for _ in range(2))
    from orch.track.mlflow_index import Index

    for one in (run, other):
        Index(store).sync(one)
    upkeep.remove([run], store, pytest.fail)
    client = mlflow.MlflowClient(store.uri)
    left = client.search_runs([client.get_experiment_by_name("same").experiment_id])
    assert {entry.data.tags["orch.id"] for entry in left} == {other.id}


def test_an_index_that_refuses_is_a_remark_and_the_run_is_gone(make, store, monkeypatch):
    def refuse(root, store):
        raise indexer.IndexUnavailableError("no route to host")

    monkeypatch.setattr(upkeep, "Indexer", refuse)
    monkeypatch.setattr(indexer, "available", lambda: True)
    run = make().to("running", "done")
    directory.encoding.write_json(run.path / "index.json", {})
    notes = []
    upkeep.remove([run], store, notes.append)
    assert not run.path.exists()
    assert "cannot be used (no route to host)" in notes[0]


def test_fixing_closes_the_dead_and_clears_half_removed_runs(make, store, monkeypatch):
    monkeypatch.setattr(indexer, "available", lambda: False)
    dead, alive, done = (make().to("running") for _ in range(3))
    state.write(dead.path, replace(dead.state, owner=replace(dead.state.owner, born="1")))
    state.write(done.path, done.state.to("done"))
    half = dead.path.with_name(f".removed-{dead.id}")
    half.mkdir()
    mended = upkeep.fix(store.index_dir.parent, store)
    assert (mended.closed, mended.error) == ((dead.id,), "MLflow is not installed")
    assert [run.state.status for run in (dead, alive, done)] == ["killed", "running", "done"]
    assert not half.exists()


def test_looking_closes_the_dead_in_the_index_too(make, store_copy, monkeypatch):
    store = store_copy()
    run = make().to("running")
    state.write(run.path, replace(run.state, owner=replace(run.state.owner, born="1")))
    directory.encoding.write_json(run.path / "index.json", {})
    synced = []

    class Noted:
        def __init__(self, root, store):
            pass

        def sync(self, path, timeout_s):
            synced.append((path, state.read(path).status))

        def close(self):
            synced.append("closed")

    monkeypatch.setattr(upkeep, "Indexer", Noted)
    assert upkeep.settle_all(store.index_dir.parent, store, pytest.fail) == [run]
    assert synced == [(run.path, "killed"), "closed"]
    assert upkeep.settle_all(store.index_dir.parent, store, pytest.fail) == []
