"""Reading runs back: names, facts, and what a damaged directory says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orch.errors import OrchError
from orch.report.stored import StoredRun, StoredStack, chosen


def test_runs_and_stacks_are_named_as_orch_runs_names_them(measured, tmp_path: Path) -> None:
    run = measured()
    found = chosen(tmp_path / "runs", ["last", f"{run.id}:merged", f"{run.id[-4:]}:small"])
    assert isinstance(found[0], StoredRun) and found[0].id == run.id
    assert [stack.name for stack in found[1:] if isinstance(stack, StoredStack)] == ["merged", "small"]
    with pytest.raises(OrchError, match=r"has no stack 'merge'; did you mean merged\?"):
        chosen(tmp_path / "runs", ["last:merge"])
    with pytest.raises(OrchError, match="no run 'zzz'"):
        chosen(tmp_path / "runs", ["zzz"])


def test_a_copied_directory_is_a_run_too(measured, tmp_path: Path) -> None:
    run = measured()
    copy = shutil.copytree(run.directory.path, tmp_path / "elsewhere" / run.id)
    (found,) = chosen(tmp_path / "runs", [str(copy)])
    assert isinstance(found, StoredRun)
    assert found.directory.path == copy
    assert found.stack("merged").step_time_s == run.stack("merged").step_time_s


def test_what_a_run_was_run_with(measured) -> None:
    run = measured("when.small.train.batch_per_worker=4")
    assert run.workers == 2
    assert run.cluster.world_size == 2
    assert (run.batch_per_worker("plain"), run.batch_per_worker("small")) == (8, 4)
    assert run.stack("small").lossless is False
    assert run.baseline == "plain"


def test_a_damaged_directory_says_what_is_missing(measured) -> None:
    run = measured()
    (run.directory.path / "recipe.yaml").write_text("[", encoding="utf-8")
    (run.stack("plain").folder / "plan.json").unlink()
    again = StoredRun(run.directory)
    with pytest.raises(OrchError, match="does not say what cluster"):
        again.cluster  # noqa: B018
    with pytest.raises(OrchError, match="does not hold the plan of stack 'plain'"):
        again.stack("plain").plan  # noqa: B018


def test_a_sweep_says_where_its_runs_are(measured) -> None:
    run = measured()
    (run.directory.path / "run.json").write_text("{}", encoding="utf-8")
    (run.directory.path / "results.json").write_text('{"trials": []}', encoding="utf-8")
    with pytest.raises(OrchError, match=r"is a sweep, which has trials and no stacks; .*/trials/\*; .*\[E641\]$"):
        StoredRun(run.directory).stack("plain")
