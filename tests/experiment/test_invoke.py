"""One invocation: refused early, simulated without workers, kept when it fails or is interrupted."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orch.errors import OrchError, RunError
from orch.experiment import execute, invoke
from orch.experiment.invoke import Invocation
from orch.recipe import load
from orch.runtime import session
from orch.track import indexer
from tests.experiment import saboteurs
from tests.experiment.conftest import PAIR, TINY, Remembers

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY, encoding="utf-8")
    return str(path)


@pytest.fixture
def ask(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Invocation]:
    """Return how to ask for the small recipe on two processes; the index, which takes seconds, is left out."""
    monkeypatch.setattr(indexer, "available", lambda: False)

    def invocation(*overrides: str, on: str | None = "processes", **named: object) -> Invocation:
        return Invocation(recipe, (PAIR, *overrides), on=on, runs=tmp_path / "runs", **named)  # type: ignore[arg-type]

    return invocation


def state_of(run: Path) -> tuple[str, str]:
    found = json.loads((run / "state.json").read_text())
    return found["status"], found["reason"]


def only_run(folder: Path) -> Path:
    (run,) = (folder / "runs" / "tiny").iterdir()
    return run


@pytest.mark.parametrize(
    ("overrides", "on", "message"),
    [
        ((), None, "nothing says what to run on; give --on local, or --simulate"),
        (("data=null",), "processes", "the recipe names no data, so it can be planned but not run"),
        (("train.precision=fp16",), "processes", "stack plain: fp16 training needs loss scaling"),
        (("train.steps=3",), "processes", "stack plain: train.steps 3 is less than the 7 steps that measure takes"),
        (("model=vgg16", "data=synthetic"), "processes", "model vgg16 has only a profile"),
        (
            ("stacks.plain={wfbp: {}, input-pipeline: {read: 1ms}}",),
            "processes",
            "stack plain can be planned, not run: reading and copying of batches are no part of a run (input-pipeline)",
        ),
        ((), "nonsense", "'nonsense' is no way to reach workers"),
        ((), "localhost:99999", "'localhost:99999' is no way to reach workers"),
        ((), "inline", "--on inline runs 1 worker in this process; the cluster has 2"),
        (("cluster.device.kind=gpu",), "local", "2 workers want 2 GPUs; this machine has"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_made(ask, tmp_path, overrides, on, message) -> None:
    with pytest.raises(OrchError) as caught:
        invoke.invoke(ask(*overrides, on=on), Remembers())
    assert str(caught.value).startswith(message)
    assert caught.value.exit_code == 2
    assert not (tmp_path / "runs").exists()


def test_experts_in_slices_run_where_rows_go_to_all_slices_at_once() -> None:
    cut = ["parallel={experts: 2, slices: 2}", "stacks={whole: [naive-moe]}", "baseline=whole"]
    with pytest.raises(OrchError, match="stack whole gathers rows for experts that are cut into slices"):
        invoke.refuse(load("char-moe", cut))
    invoke.refuse(load("char-moe", [cut[0], "stacks={whole: {parm: {schedule: s1}}}", cut[2]]))


def test_what_ranks_share_in_plans_only_is_refused() -> None:
    stacks = ["stacks={whole: [wfbp]}", "baseline=whole", "cluster=local-4"]
    invoke.refuse(load("char-moe", ["parallel={tensor: 2}", *stacks]))
    with pytest.raises(OrchError, match="shares of tokens outside attention can be shared out in a plan"):
        invoke.refuse(load("char-moe", ["parallel={tensor: 2, tokens: shares}", *stacks]))
    with pytest.raises(OrchError, match="attention of bert-moe can be shared out in a plan"):
        invoke.refuse(load("char-moe", ["model={use: bert-moe, experts: 4}", "parallel={tensor: 2}", *stacks]))


def test_a_run_leaves_a_directory_with_everything(ask, tmp_path) -> None:
    show = Remembers()
    found = invoke.invoke(ask("seeds=[0]"), show)
    run = only_run(tmp_path)
    assert state_of(run) == ("done", "")
    assert (found["mode"], found["complete"], found["run_dir"]) == ("measured", True, str(run))
    kept = json.loads((run / "results.json").read_text())
    assert kept["stacks"] == json.loads(json.dumps(found["stacks"]))
    for name in ("step_time", "loss", "accuracy", "timelines"):
        assert (run / "figures" / f"{name}.csv").stat().st_size > 50
    for stack in ("plain", "merged", "small"):
        lanes = json.loads((run / "stacks" / stack / "trace.json").read_text())["traceEvents"]
        processes = [event["args"]["name"] for event in lanes if event["name"] == "process_name"]
        assert processes == [f"{stack}, predicted (simulated)", f"{stack}, rank 0 (measured)"]
    assert show.stages[0] == "tiny: 3 stacks on 2 workers, processes"


def test_untracked_leaves_nothing(ask, tmp_path) -> None:
    found = invoke.invoke(ask("seeds=[0]", "measure.blocks=1", track=False), Remembers())
    assert (found["run_dir"], found["parent_run_id"]) == (None, None)
    assert found["stacks"]["merged"]["speedup"]["lo"] is None  # one block has no interval
    assert not (tmp_path / "runs").exists()


def test_a_run_that_fails_half_way_keeps_the_blocks_all_stacks_finished(ask, tmp_path, monkeypatch) -> None:
    class Sabotaged(execute.Execution):
        def __init__(self, recipe, gang, run, show) -> None:
            super().__init__(recipe, _Later(gang, "small", 1 + 2 + 1), run, show)

    monkeypatch.setattr(execute, "Execution", Sabotaged)
    show = Remembers()
    with pytest.raises(RunError, match=r"^stack small, block 3 of 4: rank 1 did not run its plan"):
        invoke.invoke(ask("seeds=[0]", "measure.blocks=4"), show)
    run = only_run(tmp_path)
    status, reason = state_of(run)
    assert status == "failed"
    assert reason.startswith("stack small, block 3 of 4")
    kept = json.loads((run / "results.json").read_text())
    assert kept["complete"] is False
    assert kept["stacks"]["merged"]["speedup"]["n"] == 2
    assert kept["notes"][-1].startswith("not finished: stack small, block 3 of 4")
    assert (run / "figures" / "loss.csv").exists()
    assert show.stages[-1] == f"run: {run} (not finished; what was done is kept)"


class _Later(saboteurs.Spoiled):
    """Spoils the n-th block of a stack."""

    def __init__(self, gang, stack: str, call: int) -> None:
        super().__init__(gang, session.run_block, saboteurs.report_other_bytes, stack)
        self._left = call

    def call(self, function, *args, **named):
        if function is session.run_block and args[0] == self._stack:
            self._left -= 1
        if self._left == 0:
            return super().call(function, *args, **named)
        return self._gang.call(function, *args, **named)


def test_ctrl_c_says_where_the_run_is(ask, tmp_path, monkeypatch) -> None:
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(execute.Execution, "all", interrupted)
    show = Remembers()
    with pytest.raises(KeyboardInterrupt):
        invoke.invoke(ask("seeds=[0]"), show)
    run = only_run(tmp_path)
    assert state_of(run)[0] == "interrupted"
    assert show.stages[-1] == f"run: {run} (not finished; what was done is kept)"
    assert not (run / "results.json").exists()


def test_simulating_keeps_predictions_as_a_run(ask, tmp_path) -> None:
    found = invoke.invoke(ask(simulate=True, on=None), Remembers())
    run = only_run(tmp_path)
    assert state_of(run) == ("done", "")
    assert found["mode"] == "simulated"
    assert json.loads((run / "run.json").read_text())["mode"] == "simulated"
    assert found["stacks"]["merged"]["step_time_s"]["median"] > 0
    assert sorted(path.name for path in (run / "figures").iterdir()) == ["step_time.csv", "timelines.csv"]
    assert (run / "stacks" / "small" / "plan.json").exists()


def test_simulating_needs_no_data_no_torch_and_no_worker(tmp_path) -> None:
    code = (
        "import json, sys; from pathlib import Path; from orch.experiment.invoke import Invocation, invoke;"
        "from orch.experiment.show import Quiet; from orch.track import indexer; indexer.available = lambda: False;"
        "found = invoke(Invocation('resnet50-v100', ('model=vgg16',), simulate=True, runs=Path(sys.argv[1])), Quiet());"
        "print(json.dumps([found['mode'], [m for m in ('torch', 'ray', 'mlflow') if m in sys.modules]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert json.loads(done.stdout) == ["simulated", []]


def test_sigint_in_training_ends_with_130_and_a_true_state(recipe, tmp_path) -> None:
    command = [sys.executable, "-m", "orch", "run", recipe, PAIR, "measure.blocks=500", "seeds=[0]"]
    environment = dict(os.environ, PYTHONPATH=str(ROOT), ORCH_RUNS=str(tmp_path / "runs"))
    with subprocess.Popen(
        [*command, "--on", "processes"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        said = []
        for line in process.stderr:
            said.append(line)
            if line.startswith("step "):
                process.send_signal(signal.SIGINT)
                break
        said += process.stderr.readlines()
        out = process.stdout.read()
    assert process.returncode == 130, said
    assert out == ""
    assert said[-1] == "interrupted\n"
    run = only_run(tmp_path)
    assert state_of(run)[0] == "interrupted"
    assert any(str(run) in line for line in said)
    assert not any("Traceback" in line for line in said)


def test_a_fault_found_while_torch_loads_is_one_line_and_leaves_no_run(recipe, tmp_path) -> None:
    """Nothing listens on the port: that is known long before torch is loaded, and the interpreter must not end under it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        command = [sys.executable, "-m", "orch", "run", recipe, "--on", address, "--runs", str(tmp_path / "runs")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert " stacks on " in first
    assert second.startswith(f"no Ray cluster answers at {address}")
    assert list((tmp_path / "runs").iterdir()) == []  # no index either, which nobody has needed


def test_a_model_that_cannot_be_made_leaves_no_run(ask, tmp_path, monkeypatch) -> None:
    (tmp_path / "orch.toml").write_text('techniques = ["breaks_at_once"]\n', encoding="utf-8")
    (tmp_path / "breaks_at_once.py").write_text("def make():\n    raise ValueError('no such size')\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    show = Remembers()
    with pytest.raises(OrchError, match=r"cannot be made: ValueError: no such size") as caught:
        invoke.invoke(ask('model={python: "breaks_at_once:make"}'), show)
    assert caught.value.exit_code == 2
    assert list((tmp_path / "runs").iterdir()) == []
    assert not any("not finished" in stage for stage in show.stages)
