"""A project of a user, outside any clone: one cluster, one recipe, and `orch` called in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from orch import cli, registry

CLUSTER = """\
# Two nodes of nothing in particular.
nodes: 2
devices_per_node: 2
device:
  {kind: cpu, name: example, rate: {fp32: 10GFLOP/s}, memory_bandwidth: 20GB/s, source: "example, not measured"}
links:
  inter: {alpha: 50us, beta: 0.8ns/B, source: "example, not measured"}
  intra: {alpha: 10us, beta: 0.1ns/B, source: "example, not measured"}
"""
RECIPE = """\
# What is this one for?
orch: 1
model: {use: resnet50}
train:
  batch_per_worker: 32
  optimizer: {sgd: {lr: 1e-1}}
cluster: pair
stacks:
  plain: [wfbp]
  merged: {mg-wfbp: {planner: greedy}}
"""


ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Result:
    """What a command left: exit code and both streams."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> object:
        """Standard output as the one JSON document it must be."""
        return json.loads(self.out)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an empty project file, `clusters/pair.yaml` and `recipes/mine.yaml`, and the working directory."""
    (tmp_path / "orch.toml").write_text("", encoding="utf-8")
    for name, text in {"clusters/pair.yaml": CLUSTER, "recipes/mine.yaml": RECIPE}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ORCH_RUNS", "MLFLOW_TRACKING_URI"):  # other tests of the session may have named their own
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for processes that a test starts
    return tmp_path


@pytest.fixture
def orch(project: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run a command line in the project, in this process."""

    def run(*arguments: str) -> Result:
        registry._project_table.cache_clear()  # every command line is a process of its own
        capfd.readouterr()
        code = cli.main(list(arguments))
        out, err = capfd.readouterr()
        return Result(code, out, err)

    return run
