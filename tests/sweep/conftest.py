"""A recipe with a sweep that a simulation answers in milliseconds, and everything of it in a folder of its own."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orch.experiment.show import Terminal
from orch.recipe import Recipe, load
from orch.sweep.doing import Asked
from orch.sweep.invoke import sweep
from orch.track.settings import STORE_VARIABLE

SEARCH = """\
orch: 1
name: search
model: resnet-digits
data: digits8
train:
  batch_per_worker: 8
  optimizer: {sgd: {lr: 0.05}}
cluster: {use: local-4, devices_per_node: 2}
stacks:
  ddp: [torch-ddp]
  buckets: [bucketed]
  merged: [mg-wfbp]
  small: [mg-wfbp, acp-sgd]
baseline: ddp
measure: {blocks: 2, steps: 2, warmup: 1}
sweep:
  over:
    stack: [buckets, merged, small]
    techniques.bucketed.cap: {low: 16KiB, high: 1MiB, log: true}
    techniques.mg-wfbp.planner: auto
    techniques.acp-sgd.rank: [1, 2, 4, 8]
  minimize: step_time
  trials: 12
  sampler: RandomSampler
"""

Sweep = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def _own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STORE_VARIABLE, raising=False)


@pytest.fixture
def search(tmp_path: Path) -> Path:
    """The recipe, as a file."""
    path = tmp_path / "search.yaml"
    path.write_text(SEARCH, encoding="utf-8")
    return path


@pytest.fixture
def recipe(search: Path) -> Callable[..., Recipe]:
    """Load the recipe with overrides."""
    return lambda *overrides: load(search, overrides)


@pytest.fixture
def simulate(search: Path, tmp_path: Path) -> Sweep:
    """Sweep in simulation, untracked unless asked; `said` gets what the terminal was told."""

    def run(*overrides: str, said: list[str] | None = None, track: bool = False, **asked: Any) -> dict[str, Any]:
        stream = io.StringIO()
        try:
            request = Asked(str(search), overrides, simulate=True, runs=tmp_path / "runs", track=track, **asked)
            return sweep(request, Terminal(stream))
        finally:
            if said is not None:
                said += stream.getvalue().splitlines()

    return run
