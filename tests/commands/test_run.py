"""`orch run`: a table for people, one document for programs, exit codes, and the same table later."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

ROOT = Path(__file__).resolve().parents[2]
RECIPE = """\
orch: 1
name: small
model: resnet-digits
data: digits8
train: {batch_per_worker: 8, optimizer: {sgd: {lr: 0.05}}}
cluster: {use: local-4, devices_per_node: 2}
stacks: {plain: [wfbp], merged: [mg-wfbp]}
baseline: plain
measure: {blocks: 2, steps: 2, warmup: 1}
"""
STACK_KEYS = {
    "step_time_s", "predicted_step_time_s", "prediction_error", "speedup", "loss", "accuracy", "payload_bytes_per_worker",
    "wire_bytes_per_worker", "conformant", "peak_memory_bytes", "predicted_peak_memory_bytes",
}  # fmt: skip


@pytest.fixture
def small(project: Path) -> str:
    (project / "recipes" / "small.yaml").write_text(RECIPE, encoding="utf-8")
    return "small"


def test_a_run_ends_with_a_table_and_can_be_looked_at_again(orch, small, project: Path) -> None:
    done = orch("run", small, "--on", "processes")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].split() == [
        "stack",
        "step",
        "time",
        "gain",
        "predicted",
        "payload",
        "on",
        "the",
        "wire",
        "loss",
        "accuracy",
    ]
    assert [line.split()[0] for line in lines[2:4]] == ["plain", "merged"]
    assert max(len(line) for line in lines) <= 120
    (run,) = (project / "runs" / "small").iterdir()
    assert f"run: {run}" in lines
    assert {path.name for path in (run / "figures").iterdir()} >= {
        "step_time.png",
        "step_time.pdf",
        "loss.png",
        "timelines.png",
    }
    again = orch("runs", "last").out
    for line in lines[: lines.index(f"run: {run}")]:
        assert line in again


def test_json_is_one_document_and_all_else_goes_to_standard_error(small, project: Path) -> None:
    command = [sys.executable, "-m", "orch", "run", small, "--on", "processes", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=project)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document.keys() >= {"experiment", "run_dir", "parent_run_id", "mode", "stacks"}
    assert (document["experiment"], document["mode"]) == ("small", "measured")
    assert Path(document["run_dir"], "state.json").exists()
    assert document["parent_run_id"]
    for stack in document["stacks"].values():
        assert stack.keys() >= STACK_KEYS
        assert stack["conformant"] is True
        error = stack["predicted_step_time_s"] / stack["step_time_s"]["median"] - 1
        assert stack["prediction_error"] == pytest.approx(error)
    speedup = document["stacks"]["merged"]["speedup"]
    assert speedup.keys() == {"over", "median", "lo", "hi", "level", "n", "method", "distinguishable"}
    assert (speedup["over"], speedup["n"]) == ("plain", 2)
    assert "2 workers ready (processes)" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_that_fails_ends_with_3_and_names_the_cell(project: Path) -> None:
    (project / "recipes" / "small.yaml").write_text(RECIPE, encoding="utf-8")
    code = (
        "import sys; from orch import cli; from orch.experiment import execute;"
        "from orch.runtime import session; from tests.experiment import saboteurs;"
        "made = execute.Execution.__init__;"
        "spoil = lambda gang: saboteurs.Spoiled(gang, session.run_block, saboteurs.report_other_bytes, 'merged');"
        "execute.Execution.__init__ = lambda self, recipe, gang, run, show: made(self, recipe, spoil(gang), run, show);"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "run", "small", "--on", "processes", "--json"]
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=project, env=environment)
    assert done.returncode == 3
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "E610"
    assert error["message"].startswith("stack merged: rank 1 did not run its plan")
    (run,) = (project / "runs" / "small").iterdir()
    assert json.loads((run / "state.json").read_text())["status"] == "failed"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mine", "--on", "processes"], "the recipe names no data, so it can be planned but not run"),
        (["small"], "nothing says what to run on; give --on local, or --simulate"),
        (["small", "--on", "somewhere"], "somewhere"),
        (["small", "--on", ""], "--on is empty"),
        (["smal"], "did you mean small?"),
    ],
)
def test_what_cannot_run_is_one_line_and_2(orch, small, project: Path, arguments: list[str], said: str) -> None:
    done = orch("run", *arguments)
    assert (done.code, done.out) == (2, "")
    assert said in done.err.splitlines()[-1] if "somewhere" not in arguments else said in done.err


def test_simulate_needs_neither_data_nor_a_place_to_run(orch, project: Path) -> None:
    done = orch("run", "mine", "--simulate")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0].split() == [
        "stack",
        "step",
        "time",
        "range",
        "gain",
        "payload",
        "on",
        "the",
        "wire",
    ]
    document = orch("run", "mine", "--simulate", "--json").document
    assert document["mode"] == "simulated"
    assert document["stacks"]["plain"].keys() >= STACK_KEYS
    planned = orch("plan", "mine", "--json").document["stacks"]["merged"]["step_time_s"]["median"]
    assert document["stacks"]["merged"]["predicted_step_time_s"] == planned
    assert "simulated" in orch("runs", "last").out


def test_no_track_leaves_nothing(orch, small, project: Path) -> None:
    done = orch("run", small, "--on", "processes", "--no-track", "measure.blocks=1", "--json")
    assert done.code == 0, done.err
    assert done.document["run_dir"] is None
    assert not (project / "runs").exists()


def test_a_terminal_sees_progress_then_the_table_and_nothing_garbled(small, project: Path) -> None:
    command = ["-m", "orch", "run", small, "--on", "processes", "--no-track", "measure.steps=4"]
    child = pexpect.spawn(
        sys.executable, command, cwd=str(project), dimensions=(40, 130), encoding="utf-8", timeout=120
    )
    child.expect(r"2 workers ready \(processes\)")
    child.expect(r"\r\x1b\[2K\[#*-*\] +\d+ % step \d+ of 18 \| [^\n]*loss \d\.\d+ \| \d+ samples/s \| \d+ s left")
    child.expect("stack +step time +gain")
    between = child.before
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    # Every rewriting stays on its line: before the table the line is cleared, and nothing scrolled meanwhile.
    assert between.endswith("\r\x1b[2K")
    assert "\n" not in between


def test_torchrun_runs_one_driver_and_prints_one_table(small, project: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "orch"]
    done = subprocess.run(
        [*command, "run", small, "--on", "torchrun", "measure.blocks=1"],
        capture_output=True, text=True, check=False, cwd=project,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step time") == 1
    assert len(list((project / "runs" / "small").iterdir())) == 1
