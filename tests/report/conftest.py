"""Run directories as real runs leave them, with block times that a test chooses: nothing is executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from orch.experiment.breakdown import Breakdown, breakdown
from orch.experiment.figures import figures
from orch.experiment.outcome import Outcome, Trained
from orch.experiment.predict import predict
from orch.experiment.results import document, results, simulated_document
from orch.plan import to_json
from orch.recipe import Recipe, load
from orch.report import data
from orch.report.stored import StoredRun
from orch.report.write import Written, write
from orch.track.directory import Facts, RunDirectory
from orch.track.settings import RUNS_VARIABLE, STORE_VARIABLE
from orch.track.steps import Step, Value
from orch.track.tracker import Tracker

RECIPE = """\
orch: 1
name: made-up
model: resnet-digits
data: digits8
train: {batch_per_worker: 8, optimizer: {sgd: {lr: 0.05}}}
cluster: {use: local-4, devices_per_node: 2}
stacks: {plain: [wfbp], merged: [mg-wfbp], small: [mg-wfbp, acp-sgd]}
baseline: plain
measure: {blocks: 4, steps: 2, warmup: 1}
target: {metric: loss, reach: 1.9}
"""
TIMES = {"plain": (0.10, 0.12, 0.11, 0.10), "merged": (0.05, 0.06, 0.056, 0.05), "small": (0.10, 0.119, 0.111, 0.1)}


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STORE_VARIABLE, raising=False)
    monkeypatch.setenv(RUNS_VARIABLE, str(tmp_path / "runs"))


@pytest.fixture
def simulated(tmp_path: Path) -> Callable[..., StoredRun]:
    """Keep predictions as a run."""

    def make(*overrides: str) -> StoredRun:
        def keep(log, forecast) -> None:
            found = simulated_document(forecast)
            for name, text in figures(found, forecast, None).items():
                log.write(f"figures/{name}.csv", text)
            log.finish(found | {"complete": True})

        return _kept(_loaded(tmp_path, overrides), tmp_path / "runs", "simulated", keep)

    return make


@pytest.fixture
def measured(tmp_path: Path) -> Callable[..., StoredRun]:
    """Keep a run with these block times [s] by stack, a loss that falls, and breakdowns as predicted."""

    def make(
        *overrides: str, times: Mapping[str, Sequence[float]] = TIMES, parts: Mapping[str, Breakdown] | None = None
    ) -> StoredRun:
        return _measured(tmp_path, overrides, times, parts or {})

    return make


@pytest.fixture(scope="session")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The whole report of a measured run, written once."""
    root = tmp_path_factory.mktemp("reported")
    run = _measured(root, (), TIMES, {})
    return write(data.subject(root / "runs", run), root / "out")


def _loaded(root: Path, overrides: Sequence[str]) -> Recipe:
    path = root / "made-up.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    return load(path, overrides)


def _kept(run: Recipe, root: Path, mode: str, keep: Callable[..., None]) -> StoredRun:
    facts = Facts(run.name, mode, tuple(run.stacks), seeds=run.seeds, baseline=run.baseline.name)
    with Tracker(root, index=False).run(facts, run.resolved(), run.origins()) as log:
        log.start()
        forecast = predict(run)
        for name, stack in forecast.stacks.items():
            log.write("plan.json", to_json(stack.plan), stack=name)
        keep(log, forecast)
    assert log.path is not None
    return StoredRun(RunDirectory(log.path))


def _measured(
    root: Path, overrides: Sequence[str], times: Mapping[str, Sequence[float]], parts: Mapping[str, Breakdown]
) -> StoredRun:
    run = _loaded(root, overrides)

    def keep(log, forecast) -> None:
        outcome = Outcome(run, forecast)
        for seed in run.seeds:
            for name in run.stacks:
                trained = _trained(name, seed, times[name], run, log)
                trained.breakdown = parts.get(name) or breakdown(forecast.stacks[name].timeline)
                outcome.trained.append(trained)
        found = document(outcome, results(outcome), "measured")
        for name, text in figures(found, forecast, outcome).items():
            log.write(f"figures/{name}.csv", text)
        log.finish(found | {"complete": True})

    return _kept(run, root / "runs", "measured", keep)


def _trained(name: str, seed: int, times: Sequence[float], run: Recipe, log) -> Trained:
    trained = Trained(name, seed)
    length, clock = run.measure.steps, 0.0
    log.stack(name, seed).log_values([Value(0, 0.0, "val_loss", 2.5), Value(0, 0.0, "val_accuracy", 0.1)])
    trained.judged.append((0.0, 2.5, 0.1))
    for block, seconds in enumerate(times):
        for _ in range(length):
            clock += seconds
            loss = 2.5 - 0.1 * len(trained.losses)
            log.stack(name, seed).log_steps([Step(len(trained.losses), block, loss, seconds, clock)])
            trained.losses.append(loss)
            trained.clock_s.append(clock)
        trained.block_times_s.append(seconds)
        trained.payload_bytes.append(1000.0)
        judged = (clock, 2.4 - 0.2 * block, 0.2 + 0.1 * block)
        trained.judged.append(judged)
        log.stack(name, seed).log_values(
            [
                Value(len(trained.losses), clock, "val_loss", judged[1]),
                Value(len(trained.losses), clock, "val_accuracy", judged[2]),
            ]
        )
    return trained
