"""Batch scripts: printed, submitted and run, against small stand-ins of sbatch, srun and scontrol."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orch.errors import OrchError
from orch.launch import Job
from orch.launch import slurm as module
from tests.launch.conftest import Said, Slurm

Orch = Callable[..., Said]
STEPS = "2*/stacks/plain/steps.seed0.csv"


def job(**changes: object) -> Job:
    values: dict[str, object] = {
        "name": "mine", "nodes": 3, "per_node": 4, "gpu": True, "command": ("run", "mine", "stacks.a=[dear, top-k]"),
        "runs": Path("/data/my runs"), "python": "/env/bin/python", "settings": {},
    }  # fmt: skip
    return Job(**(values | changes))  # type: ignore[arg-type]


def directives(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")]


def test_the_script_asks_for_the_cluster_and_to_be_told_before_its_time_is_up() -> None:
    text = module.script(
        job(settings={"via": "ray", "time": "2:00:00", "nodes": "5", "gres": "gpu:4"}), Path("/project")
    )
    asked = directives(text)
    assert asked[:4] == ["job-name=orch-mine", "chdir=/project", "output=orch-%j.log", "open-mode=append"]
    assert {"ntasks-per-node=1", "mincpus=4", "gpus-per-node=4", "exclusive", "requeue", "signal=B:USR1@120"} <= set(
        asked
    )
    assert {"nodes=5", "time=2:00:00", "gres=gpu:4"} <= set(asked)  # what the user says wins, and is passed on
    assert "todo=(run mine 'stacks.a=[dear, top-k]')" in text
    assert "export ORCH_RUNS='/data/my runs'" in text
    assert '--min-nodes 3 --num-cpus 4 --num-gpus 4 --disable-usage-stats \\\n  -- "$python" -m orch' in text


def test_without_ray_every_worker_is_a_task() -> None:
    text = module.script(job(gpu=False, settings={"via": "srun"}), Path("/project"))
    assert "ntasks-per-node=4" in directives(text)
    assert "WORLD_SIZE=12 LOCAL_WORLD_SIZE=4" in text
    assert "srun --nodes=3 --ntasks=12 --ntasks-per-node=4" in text
    assert "gpus" not in text
    assert "RAY_AUTH" not in text


@pytest.mark.parametrize("via", ["ray", "srun"])
def test_bash_reads_the_script(via: str) -> None:
    text = module.script(job(settings={"via": via}), Path("/a folder"))
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_another_way_is_refused() -> None:
    with pytest.raises(OrchError, match="--job via=mpi: there are ray and srun"):
        module.script(job(settings={"via": "mpi"}), Path("/"))


def test_print_submits_nothing_and_a_submission_says_the_job(slurm: Slurm, orch: Orch) -> None:
    printed = orch("run", "tiny", "--on", "slurm", "--print", "--job", "time=10")
    assert printed.code == 0, printed.err
    assert printed.out.startswith("#!/bin/bash\n#SBATCH --job-name=orch-tiny\n")
    assert not slurm.script.exists()
    sent = orch("run", "tiny", "--on", "slurm", "--job", "time=10")
    assert sent.out.splitlines() == [
        "submitted batch job 4242",
        "next: squeue -j 4242; tail -f orch-4242.log; orch runs",
    ]
    assert slurm.script.read_text() == printed.out
    document = json.loads(orch("run", "tiny", "--on", "slurm", "--json").out)
    assert document["job"] == "4242"
    refused = orch("run", "tiny", "--on", "slurm", "--job", "partition=closed")
    assert refused.code == 2
    assert refused.err == (
        "sbatch refuses: Batch job submission failed: Required partition not available; "
        "mend it by --job KEY=VALUE, such as --job account=A [E728]\n"
    )


def test_what_is_wrong_is_said_before_anything_waits_in_a_queue(
    slurm: Slurm, orch: Orch, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "unknown key 'blocs'" in orch("run", "tiny", "measure.blocs=2", "--on", "slurm").err
    assert (
        "--job 'time' is no KEY=VALUE; such as --job time=2:00:00 [E727]"
        in orch("run", "tiny", "--on", "slurm", "--job", "time").err
    )
    assert "--print is about what is submitted" in orch("run", "tiny", "--print").err
    monkeypatch.setenv("PATH", "/nowhere")
    assert "there is no sbatch on this machine" in orch("run", "tiny", "--on", "slurm").err
    assert not slurm.script.exists()


def test_ray_is_started_on_every_node_with_a_token(slurm: Slurm, orch: Orch) -> None:
    assert orch("run", "tiny", "--on", "slurm", "--job", "via=ray").code == 0
    text = slurm.script.read_text()
    slurm.script.write_text(
        text.replace('export PATH="$(dirname "$python"):$PATH"\n', "")
    )  # so that `ray` is the stand-in
    assert slurm.start().wait(60) == 0
    called = [line for line in slurm.calls if line.startswith("ray ")]
    assert len(called) == 1
    words = called[0].split()
    address = words[words.index("--address") + 1]
    assert address.endswith(f":{20000 + 4242}")
    assert words[-6:] == ["-m", "orch", "run", "tiny", "--on", address]
    assert 'RAY_AUTH_MODE=token RAY_AUTH_TOKEN="$secret"' in text


@pytest.mark.slow
def test_a_job_without_ray_runs_and_keeps_its_log_with_the_run(slurm: Slurm, orch: Orch) -> None:
    (slurm.folder / "ray.py").write_text("raise ImportError('not installed here')\n")
    assert orch("run", "tiny", "--on", "slurm", "--job", "via=srun").code == 0
    code = slurm.start().wait(120)
    (run,) = (slurm.project / "runs" / "tiny").glob("2*")
    log = (run / "logs" / "slurm-4242.log").read_text()
    assert code == 0, log
    assert json.loads((run / "state.json").read_text())["status"] == "done"
    assert json.loads((run / "run.json").read_text())["extra"]["on"] == "torchrun"
    assert f"run: {run}" in log or "run: runs/tiny/" in log
    assert not (slurm.project / "orch-4242.log").exists()
    assert (run / "logs" / "rank1.log").exists()


@pytest.mark.slow
def test_a_job_that_is_told_its_time_is_up_is_queued_again_and_goes_on(slurm: Slurm, orch: Orch) -> None:
    long = ["measure.blocks=6", "measure.steps=30"]  # seconds, so that the signal comes long before the end
    assert orch("run", "tiny", *long, "--on", "slurm", "--job", "via=srun").code == 0
    job = slurm.start()
    runs = slurm.project / "runs" / "tiny"
    give_up = time.monotonic() + 120
    while not any(len(path.read_text().splitlines()) > 1 + 30 for path in runs.glob(STEPS)):
        assert job.poll() is None and time.monotonic() < give_up
        time.sleep(0.05)
    job.send_signal(signal.SIGUSR1)
    job.wait(120)
    assert slurm.calls[-1] == "scontrol requeue 4242"
    (run,) = runs.glob("2*")
    assert json.loads((run / "state.json").read_text())["status"] == "interrupted"
    (steps,) = runs.glob(STEPS)
    before = steps.read_text().splitlines()
    assert slurm.start().wait(120) == 0, (run / "logs" / "slurm-4242.log").read_text()
    assert list(runs.glob("2*")) == [run]
    assert json.loads((run / "state.json").read_text())["status"] == "done"
    after = steps.read_text().splitlines()
    assert len(after) == 1 + 1 + 6 * 30 and after[: len(before)] == before
