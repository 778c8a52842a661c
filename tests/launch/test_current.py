"""Which run a Slurm job made."""

from __future__ import annotations

from pathlib import Path

from orch.launch.current import run_of
from orch.track import directory
from orch.track.directory import Facts


def test_the_run_of_a_job_is_the_newest_that_was_made_in_it(tmp_path: Path) -> None:
    assert run_of(tmp_path, "7") is None
    runs = [directory.create(tmp_path, Facts("mine", "measured", ("a",))) for _ in range(3)]
    for run, job in zip(runs, ("7", "7", "8"), strict=True):
        run.write_json("environment.json", {"variables": {"SLURM_JOB_ID": job}})
    directory.create(tmp_path, Facts("mine", "measured", ("a",))).write_json("environment.json", {})
    assert run_of(tmp_path, "7") == max(runs[:2], key=lambda run: run.id).path
    assert run_of(tmp_path, "8") == runs[2].path
    assert run_of(tmp_path, "9") is None
    assert run_of(tmp_path, "") is None
