"""The process that keeps the index: six at once on a fresh store, stores that are gone, drivers that die."""

import os
import select
import signal
import subprocess
import sys

import pytest

from orch.track import directory, indexer
from orch.track.indexer import Indexer, IndexUnavailableError
from orch.track.settings import store_of

mlflow = pytest.importorskip("mlflow")


def statuses(store, run):
    client = mlflow.MlflowClient(store.uri)
    experiments = [e.experiment_id for e in client.search_experiments()]
    return {e.info.status for e in client.search_runs(experiments, f"tags.`orch.id` = '{run.id}'")}


def test_a_rebuild_sets_a_ruined_store_aside(shared, make, tmp_path):
    run = make().to("running", "done", results={})
    store = store_of(tmp_path / "runs")
    store.index_dir.mkdir()
    store.file.write_bytes(b"not a database" * 1000)
    keeper = Indexer(tmp_path / "runs", store)
    try:
        with pytest.raises(IndexUnavailableError, match="not a database"):
            keeper.sync(run.path, 60)
        first = keeper.rebuild(60)
        assert (first["synced"], first["set_aside"]) == (1, next(store.index_dir.glob("mlflow.db.*.old")).name)
        assert keeper.rebuild(60) == {"synced": 1, "removed": 0, "set_aside": None}
        assert statuses(store, run) == {"FINISHED"}
    finally:
        keeper.close()


def test_an_answer_that_takes_too_long_is_not_waited_for(make, tmp_path):
    run = make().to("running")
    keeper = Indexer(tmp_path / "runs", store_of(tmp_path / "runs"))
    try:
        with pytest.raises(IndexUnavailableError, match="did not answer in time"):
            keeper.sync(run.path, 0.01)
    finally:
        keeper._process.kill()
        keeper.close()


def test_a_keeper_that_is_not_waited_for_still_does_what_it_was_asked(shared, make, tmp_path):
    run = make().to("running", "interrupted")
    store = store_of(tmp_path / "runs")
    keeper = Indexer(tmp_path / "runs", store)
    keeper.watch(run.path)
    keeper.leaves_in_s = 0.0
    keeper.close()
    os.waitpid(keeper._process.pid, 0)
    assert statuses(store, run) == {"KILLED"}


def test_a_keeper_that_died_says_so(shared, make, tmp_path):
    run = make().to("running")
    keeper = Indexer(tmp_path / "runs", store_of(tmp_path / "runs"))
    keeper._process.kill()
    with pytest.raises(IndexUnavailableError, match="its process ended"):
        keeper.sync(run.path, 60)
    keeper.close()


def test_the_uri_is_on_no_command_line(tmp_path):
    secret = "http://me:hunter2@127.0.0.1:9"
    keeper = Indexer(tmp_path, store_of(tmp_path, secret))
    try:
        assert "hunter2" not in " ".join(map(str, keeper._process.args))
        assert indexer._environment(store_of(tmp_path, secret))["MLFLOW_TRACKING_URI"] == secret
        assert indexer._environment(store_of(tmp_path))["MLFLOW_TRACKING_URI"] == ""
    finally:
        keeper._process.kill()
        keeper.close()


DRIVER = """
import os, pathlib, sys, time
from orch.track.tracker import *
from orch.track.steps import Step
tracker = Tracker(pathlib.Path(sys.argv[1]))
with tracker.run(Facts('killed', 'measured', ('a',)), {}) as run:
    run.start()
    run.stack('a').log_steps([Step(1, 0, 1.0, 0.1, 0.1)])
    print(run._index._indexer._process.pid, flush=True)
    if sys.argv[2] == 'indexed':
        run._index._indexer.sync(run.path, 60)
    print('ready', flush=True)
    while True: time.sleep(0.05)
"""


@pytest.mark.parametrize(("number", "when"), [(signal.SIGKILL, "early"), (signal.SIGINT, "indexed")])
def test_a_dying_driver_is_closed_in_directory_and_index_and_leaves_no_process(
    make, store_copy, tmp_path, number, when
):
    store = store_copy()
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "runs"), when]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    keeper = os.pidfd_open(int(driver.stdout.readline()))
    assert driver.stdout.readline() == "ready\n"
    driver.send_signal(number)
    driver.wait()
    driver.stdout.close()
    assert select.select([keeper], [], [], 60)[0] == [keeper]
    os.close(keeper)
    (run,) = directory.find_all(tmp_path / "runs")
    assert run.state.status == ("killed" if number == signal.SIGKILL else "interrupted")
    assert statuses(store, run) == {"KILLED"}
