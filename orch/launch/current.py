"""`python -m orch.launch.current`: print the run directory of the Slurm job this is called in; nothing if it has none yet."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from orch.track import directory, encoding, settings

_VARIABLE = "SLURM_JOB_ID"


def run_of(root: Path, job: str) -> Path | None:
    """Return the newest run that the Slurm job with the id `job` made, in whichever of its starts."""
    found = [run for run in directory.find_all(root) if job and _job_of(run.path) == job]
    return max(found, key=lambda run: run.id).path if found else None


def _job_of(run: Path) -> str:
    variables = encoding.read_json(run / "environment.json").get("variables")
    return str(variables.get(_VARIABLE, "")) if isinstance(variables, Mapping) else ""


if __name__ == "__main__":
    path = run_of(settings.runs_root(), os.environ.get(_VARIABLE, ""))
    sys.stdout.write("" if path is None else f"{path}\n")
