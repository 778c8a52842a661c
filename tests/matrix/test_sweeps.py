"""Sweeps whose drivers are killed again and again, and several drivers on one store: the commands as a user types them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
RECIPE = """\
orch: 1
name: killed
model: resnet-digits
data: digits8
train: {batch_per_worker: 8, optimizer: {sgd: {lr: 0.05}}}
cluster: {use: local-4, devices_per_node: 2}
stacks: {wfbp: [wfbp], buckets: [bucketed]}
baseline: wfbp
measure: {blocks: 2, steps: 10, warmup: 0}
sweep:
  over: {stack: [buckets], techniques.bucketed.cap: {low: 1KiB, high: 1MiB}}
  minimize: step_time
  trials: 40
  confirm: false
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "killed.yaml"
    path.write_text(RECIPE)
    return path


def sweep(recipe: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "orch", "sweep", recipe, *more, "--runs", recipe.parent / "runs", "--json"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def told(recipe: Path) -> Counter[int]:
    """Return how often each trial is told of as ended, over all runs of the recipe."""
    lines = [
        line for path in recipe.parent.glob("runs/killed/*/trials.jsonl") for line in path.read_text().splitlines()
    ]
    return Counter(json.loads(line)["number"] for line in lines)


def check(study: optuna.Study, found: dict) -> None:
    """Exactly forty, none twice, none left running; the document says the same as the store."""
    frozen = study.get_trials()
    assert [trial.number for trial in frozen] == list(range(40))
    assert {trial.state for trial in frozen} == {optuna.trial.TrialState.COMPLETE}
    points = [trial.params["techniques.bucketed.cap"] for trial in frozen]
    assert len(set(points)) == 40
    assert found["counts"] == {"complete": 40}
    assert [trial["number"] for trial in found["trials"]] == list(range(40))


@pytest.mark.parametrize("seed", [0, 1])
def test_ten_kills_at_random_moments_lose_no_trial(recipe: Path, seed: int) -> None:
    chance, kills = random.Random(seed), 0
    while kills < 10:
        driver, before = sweep(recipe, "--on", "processes"), sum(told(recipe).values())
        # Past the start of the workers: a kill before the first trial would show nothing.
        while driver.poll() is None and sum(told(recipe).values()) <= before:
            time.sleep(0.05)
        time.sleep(chance.uniform(0.0, 0.4))
        if driver.poll() is not None:
            pytest.fail(f"the sweep ended before kill {kills}: {driver.stderr.read().decode()}")
        driver.send_signal(signal.SIGKILL)
        driver.communicate()
        assert driver.returncode == -9
        kills += 1
    out, err = sweep(recipe, "--on", "processes").communicate()
    assert out, err.decode()
    (journal,) = recipe.parent.glob("runs/killed/sweeps/*.journal")
    study = optuna.load_study(study_name="killed", storage=JournalStorage(JournalFileBackend(str(journal))))
    check(study, json.loads(out))
    # A trial that was measured and not told of is found among the cells, not measured again.
    assert max(told(recipe).values()) == 1


@pytest.mark.parametrize("database", [False, True])
def test_two_drivers_share_one_store(recipe: Path, database: bool) -> None:
    url = f"sqlite:///{recipe.parent}/shared.db"
    more = ["--on", "processes", *([f"sweep.storage={url}"] if database else [])]
    drivers = [sweep(recipe, *more) for _ in range(2)]
    ended = [driver.communicate() for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], [err.decode() for _, err in ended]
    if database:
        storage = RDBStorage(url)
    else:
        (journal,) = recipe.parent.glob("runs/killed/sweeps/*.journal")
        storage = JournalStorage(JournalFileBackend(str(journal)))
    last = max((json.loads(out) for out, _ in ended), key=lambda found: found["counts"].get("complete", 0))
    check(optuna.load_study(study_name="killed", storage=storage), last)
    assert set(told(recipe).values()) == {1}
    assert len(told(recipe)) == 40


def test_an_interrupted_sweep_leaves_no_trial_running(recipe: Path) -> None:
    driver = sweep(recipe, "--on", "processes", "--parallel", "2", "sweep.measure=shared")
    while driver.poll() is None and sum(told(recipe).values()) < 3:
        time.sleep(0.05)
    os.kill(driver.pid, signal.SIGINT)
    _, err = driver.communicate()
    assert driver.returncode == 130, err.decode()
    (journal,) = recipe.parent.glob("runs/killed/sweeps/*.journal")
    study = optuna.load_study(study_name="killed", storage=JournalStorage(JournalFileBackend(str(journal))))
    assert not [trial for trial in study.get_trials() if trial.state == optuna.trial.TrialState.RUNNING]
    out, err = sweep(recipe, "--on", "processes").communicate()
    assert out, err.decode()
    check(optuna.load_study(study_name="killed", storage=study._storage), json.loads(out))
