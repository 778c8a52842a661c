"""Small stand-ins for the commands of Slurm: they do on one machine what the real ones do on many."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from orch import cli, registry

ROOT = Path(__file__).resolve().parents[2]
TINY = """\
orch: 1
name: tiny
model: resnet-digits
data: digits8
train: {batch_per_worker: 8, optimizer: {sgd: {lr: 0.05}}}
cluster: {use: local-4, devices_per_node: 2}
stacks:
  plain: [wfbp]
measure: {blocks: 2, steps: 2, warmup: 1}
"""
SBATCH = """\
#!/bin/bash
[ "$1" = --parsable ] || exit 1
cat > "$SLURM_STAND_IN/script.sh"
if grep -q partition=closed "$SLURM_STAND_IN/script.sh"; then
  echo "sbatch: error: Batch job submission failed: Required partition not available" >&2; exit 1
fi
echo "4242;main"
"""
# As many tasks as asked for, all on this machine; the first task's exit code is the step's.
SRUN = """\
#!/bin/bash
echo "srun $*" >> "$SLURM_STAND_IN/calls"
tasks=1
while [[ $1 == -* ]]; do case $1 in --ntasks=*) tasks=${1#*=};; esac; shift; done
for ((rank = 1; rank < tasks; rank++)); do SLURM_PROCID=$rank SLURM_LOCALID=$rank "$@" & done
SLURM_PROCID=0 SLURM_LOCALID=0 "$@"; code=$?
wait; exit $code
"""
SAYS = """\
#!/bin/bash
echo "${0##*/} $*" >> "$SLURM_STAND_IN/calls"
"""


class Said(NamedTuple):
    """What a command line left: its exit code and both streams."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Slurm:
    """The stand-ins' folder, and the project that jobs are submitted from."""

    folder: Path
    project: Path

    @property
    def script(self) -> Path:
        """The batch script that was submitted last."""
        return self.folder / "script.sh"

    @property
    def calls(self) -> list[str]:
        """What the stand-ins were called with, but sbatch."""
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def start(self, job: int = 4242) -> subprocess.Popen[bytes]:
        """Start the batch script as Slurm would, its output appended to the job's log."""
        with (self.project / f"orch-{job}.log").open("ab") as log:
            environment = {
                **os.environ,
                "SLURM_JOB_ID": str(job),
                "SLURM_CPUS_ON_NODE": "2",
                "PYTHONPATH": f"{self.folder}{os.pathsep}{ROOT}",
            }
            return subprocess.Popen(
                ["bash", str(self.script)],
                env=environment,
                cwd=self.project,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    folder, project = tmp_path / "slurm", tmp_path / "project"
    for path in (folder, project / "recipes"):
        path.mkdir(parents=True)
    (project / "orch.toml").write_text("")
    (project / "recipes" / "tiny.yaml").write_text(TINY)
    for name, text in {"sbatch": SBATCH, "srun": SRUN, "scontrol": SAYS, "ray": SAYS}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.chdir(project)
    monkeypatch.setenv("SLURM_STAND_IN", str(folder))
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    for name in ("ORCH_RUNS", "ORCH_INTERFACE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    return Slurm(folder, project)


@pytest.fixture
def orch(capfd: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Call the command line in the working directory, in this process."""

    def run(*arguments: str) -> Said:
        registry._project_table.cache_clear()  # every command line is a process of its own
        capfd.readouterr()
        return Said(cli.main(list(arguments)), *capfd.readouterr())

    return run
