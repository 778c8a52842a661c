"""`--resume`: a run whose driver ended goes on as what it was, or is refused by name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orch.errors import OrchError
from orch.experiment import execute, invoke, resume
from orch.experiment.invoke import Invocation
from orch.track import directory, indexer
from tests.experiment.conftest import PAIR, TINY, Remembers

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = (PAIR, "seeds=[0, 1]", "measure={blocks: 2, steps: 2, warmup: 1}", "train.checkpoint={every: 1}")


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(indexer, "available", lambda: False)
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY, encoding="utf-8")
    return str(path)


@pytest.fixture
def begin(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], Path]:
    """Run the small recipe, stopped like Ctrl-C when the n-th block is to begin; return its directory."""

    def run(blocks: int | None) -> Path:
        done = [0]
        block = execute.Execution._block

        def counted(self: Any, *args: Any) -> None:
            done[0] += 1
            if done[0] == blocks:
                raise KeyboardInterrupt
            block(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(execute.Execution, "_block", counted)
            try:
                invoke.invoke(Invocation(recipe, SETTINGS, on="processes", runs=tmp_path / "runs"), Remembers())
            except KeyboardInterrupt:
                assert blocks is not None
        return max((tmp_path / "runs" / "tiny").iterdir())

    return run


def prints(run: Path) -> dict[str, Any]:
    return {
        name: json.loads((run / "stacks" / name / "parameters.json").read_text())
        for name in ("plain", "merged", "small")
    }


def steps(run: Path) -> dict[str, list[str]]:
    return {str(path.relative_to(run)): path.read_text().splitlines() for path in run.glob("stacks/*/steps.seed*.csv")}


def test_a_run_goes_on_where_it_stood_and_ends_the_same(begin, tmp_path) -> None:
    whole = begin(None)
    run = begin(9)
    before = steps(run)
    show = Remembers()
    found = invoke.invoke(Invocation(None, runs=tmp_path / "runs", resume="last"), show)
    assert found is not None
    assert (found["complete"], found["run_dir"]) == (True, str(run))
    assert prints(run) == prints(whole)
    after = steps(run)
    # What was measured before stays as it was.
    assert all(after[name][: len(lines)] == lines for name, lines in before.items())
    assert {len(lines) for lines in after.values()} == {1 + 5}
    assert {stack["speedup"]["n"] for stack in found["stacks"].values()} == {4}
    state = json.loads((run / "state.json").read_text())
    assert state["status"] == "done"
    (ended,) = json.loads((run / "run.json").read_text())["ended_before"]
    assert ended["status"] == "interrupted"
    assert show.steps == 2 * 3 * 5
    assert (run / "checkpoints" / "plain" / "seed1" / "step-0000000005" / "complete.json").exists()


def test_a_driver_that_was_killed_is_no_hindrance(recipe, tmp_path) -> None:
    command = [sys.executable, "-m", "orch", "run", recipe, *SETTINGS, "measure.blocks=400", "--on", "processes"]
    environment = dict(os.environ, PYTHONPATH=str(ROOT), ORCH_RUNS=str(tmp_path / "runs"))
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step "):
                process.kill()
                break
    (path,) = (tmp_path / "runs" / "tiny").iterdir()
    found = resume.find(tmp_path / "runs", "last", "tiny")
    assert found.path == path
    assert found.state is not None
    assert found.state.status == "killed"
    assert process.returncode == -signal.SIGKILL
    assert resume.asked_for(found)[1:] == ((*SETTINGS, "measure.blocks=400"), "processes")


def test_what_is_not_the_same_run_any_more_is_refused(begin, recipe, tmp_path, monkeypatch) -> None:
    run = begin(2)
    runs = tmp_path / "runs"

    def refused(message: str, **asked: Any) -> None:
        with pytest.raises(OrchError, match=message) as caught:
            invoke.invoke(Invocation(**{"recipe": None, "runs": runs, "resume": "last", **asked}), Remembers())
        assert (caught.value.code, caught.value.exit_code) == ("E820", 2)
        assert json.loads((run / "state.json").read_text())["status"] == "interrupted"

    other = (*SETTINGS[:-1], "train.checkpoint={every: 1}", "train.optimizer={sgd: {lr: 0.5}}")
    refused(
        r"the recipe of run .* has changed: train.optimizer.sgd.lr was 0.05, and is 0.5", recipe=recipe, overrides=other
    )
    refused(r"run .* began with --on processes; local would be another run", on="local")
    refused(r"no run of another under .* is unfinished", recipe="another")
    digest = resume.code_of
    monkeypatch.setattr(resume, "code_of", lambda asked: digest(asked) | {"orch/runtime/engine.py": "0"})
    refused(r"the code of run .* has changed: orch/runtime/engine.py")
    monkeypatch.setattr(resume, "code_of", digest)
    with directory.RunDirectory(run).taken():
        refused(r"run .* is being taken up by another driver")
    assert invoke.invoke(Invocation(None, runs=runs, resume=run.name), Remembers()) is not None
    with pytest.raises(OrchError, match=r"run .* is done; nothing is left of it"):
        resume.find(runs, run.name, None)
    with pytest.raises(OrchError, match=r"no run under .* is unfinished"):
        resume.find(runs, "last", None)


def test_only_measured_runs_go_on(recipe, tmp_path) -> None:
    found = invoke.invoke(Invocation(recipe, simulate=True, runs=tmp_path / "runs"), Remembers())
    assert found is not None
    with pytest.raises(OrchError, match=r"cannot go on: it trained nothing"):
        resume.find(tmp_path / "runs", Path(found["run_dir"]).name, None)
    with pytest.raises(OrchError, match=r"no recipe is named"):
        invoke.invoke(Invocation(None), Remembers())


def test_the_code_of_a_run_is_all_that_it_rests_on(tiny) -> None:
    code = resume.code_of(tiny())
    assert code["orch/runtime/engine.py"]
    assert code["torch"].startswith("2.")
    assert any(name.endswith("compression/acp_sgd_kernels.py") or "acp_sgd" in name for name in code)
