"""`orch runs`: what it prints for people and for programs, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orch.track import directory, indexer, state
from orch.track.directory import Facts, RunDirectory


@pytest.fixture(autouse=True)
def _no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer, "available", lambda: False)
    monkeypatch.delenv("ORCH_RUNS", raising=False)


def made(
    root: Path, *statuses: state.Status, recipe: str = "mine", results: dict[str, object] | None = None
) -> RunDirectory:
    run = directory.create(root, Facts(recipe, "measured", ("ddp", "dear")))
    for status in statuses:
        found = run.state
        assert found is not None
        state.write(run.path, found.to(status))
    if results is not None:
        run.write_json("results.json", results)
    (run.path / "logs").mkdir()
    run.log(0).write_text("hello\nworld\n")
    return run


def stack_results(loss: float, **speedup: object) -> dict[str, object]:
    gain = {"over": "ddp", "median": 1.0, "lo": 1.0, "hi": 1.0, "level": 0.95, "n": 8, "distinguishable": False}
    return {
        "step_time_s": {"median": 0.2, "lo": 0.19, "hi": 0.21}, "predicted_step_time_s": 0.22, "prediction_error": 0.1,
        "speedup": gain | speedup, "at_equal_time": {"seconds": 2.0, "loss": loss, "accuracy": 0.9}, "note": "",
        "time_to_target_s": None, "payload_bytes_per_worker": 1024.0, "wire_bytes_per_worker": 2048.0, "lossless": True,
        "loss": {"first": 2.3, "last": loss},
    }  # fmt: skip


RESULTS: dict[str, object] = {
    "mode": "measured", "workers": 4, "baseline": "ddp", "ceiling": {"step_time_s": 0.1, "speedup": 2.0},
    "median_prediction_error": 0.1,
    "stacks": {
        "ddp": stack_results(float("nan")),
        "dear": stack_results(0.5, median=1.5, lo=1.4, hi=1.6, distinguishable=True),
    },
}  # fmt: skip


def test_no_runs_is_no_error(orch, project: Path) -> None:
    assert orch("runs").out == f"no runs under {project / 'runs'}; `orch run RECIPE` makes one\n"
    assert orch("runs", "--json").document == []


def test_the_newest_run_comes_first_with_its_best_gain(orch, project: Path) -> None:
    first = made(project / "runs", "running", "failed")
    second = made(project / "runs", "running", "done", results=RESULTS)
    lines = orch("runs").out.splitlines()
    assert lines[2].split()[:3] == [second.id, "mine", "done"]
    assert lines[2].endswith("1.50x [1.40, 1.60] dear")
    assert lines[3].split()[:3] == [first.id, "mine", "failed"]
    assert [one["id"] for one in orch("runs", "--json").document] == [second.id, first.id]


def test_results_of_another_form_are_pointed_at(orch, project: Path) -> None:
    made(project / "runs", "running", "done", results={"stacks": {"ddp": {"seconds": 1}}})
    done = orch("runs", "last")
    assert done.code == 0
    assert "results.json has them" in done.out


def test_many_runs_are_cut_for_people_and_whole_for_programs(orch, project: Path) -> None:
    for _ in range(22):
        made(project / "runs", "running", "done")
    assert orch("runs").out.splitlines()[-1] == "... and 2 older (--all)"
    assert len(orch("runs", "--all").out.splitlines()) == 24
    assert len(orch("runs", "--json").document) == 22


def test_one_run_shows_what_it_found(orch, project: Path) -> None:
    run = made(project / "runs", "running", "done", results=RESULTS)
    text = orch("runs", "last").out
    assert f"run      {run.id}" in text
    assert "dear   " in text
    assert "1.50 [1.40, 1.60]" in text
    assert "0.900" in text
    assert "medians of 8 blocks" in text
    assert "nan" in text
    assert "  logs/rank0.log" in text
    document = orch("runs", run.id, "--json").document
    assert document["results"]["stacks"]["ddp"]["loss"]["last"] == "NaN"
    assert document["run_dir"] == str(run.path)
    assert orch("runs", "--json", run.id).document == document


def test_the_place_is_an_option_before_or_after_and_a_variable(orch, tmp_path: Path, monkeypatch) -> None:
    run = made(tmp_path / "there", "running", "done")
    assert orch("runs", "last", "--runs", str(tmp_path / "there"), "--json").document["id"] == run.id
    assert orch("runs", "--runs", str(tmp_path / "there"), "last", "--json").document["id"] == run.id
    monkeypatch.setenv("ORCH_RUNS", str(tmp_path / "there"))
    assert orch("runs", "last", "--json").document["id"] == run.id


def test_a_dead_driver_is_found_by_looking(orch, project: Path) -> None:
    run = made(project / "runs", "running")
    found = run.state
    assert found is not None
    state.write(run.path, replace(found, owner=replace(found.owner, born="1")))
    (document,) = orch("runs", "--json").document
    assert (document["state"], document["id"]) == ("killed", run.id)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("runs", "nope"), "no run 'nope' under"),
        (("runs", "2"), "2 runs begin with '2':"),
        (("runs", "stp", "last"), "orch runs has no command 'stp'; did you mean stop?"),
        (("runs", "logs", "last", "--rank", "7"), "has no log of rank 7; ranks with a log: 0"),
        (("runs", "logs", "last", "--follow", "--json"), "--follow goes with neither --json nor --lines"),
        (("runs", "rm", "last", "nope"), "no run 'nope' under"),
        (("runs", "rm"), "missing argument"),
        (("runs", "--jsno"), "no such option: --jsno; did you mean --json?"),
    ],
)
def test_what_is_refused_is_one_line(orch, project: Path, arguments: tuple[str, ...], message: str) -> None:
    for _ in range(2):
        made(project / "runs", "running", "done")
    done = orch(*arguments)
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1
    assert len(list(directory.find_all(project / "runs"))) == 2


def test_logs_in_full_in_part_and_as_data(orch, project: Path) -> None:
    run = made(project / "runs", "running", "done")
    assert orch("runs", "logs", "last").out == "hello\nworld\n"
    assert orch("runs", "logs", "last", "-n", "1").out == "world\n"
    assert orch("runs", "logs", "last", "--follow").out == "hello\nworld\n"
    assert orch("runs", "logs", "last", "--json").document["logs"] == {"rank0": ["hello", "world"]}
    run.log(None).write_text("driver")
    assert orch("runs", "logs", "last").out == "==> driver.log <==\ndriver\n==> rank0.log <==\nhello\nworld\n"


def test_a_run_that_is_over_is_removed_and_one_that_runs_is_not(orch, project: Path) -> None:
    over, running = made(project / "runs", "running", "done"), made(project / "runs", "running")
    assert orch("runs", "rm", over.id, running.id).code == 2
    assert "is running; stop it first, or use --force" in orch("runs", "rm", running.id).err
    assert running.path.exists()
    again = made(project / "runs", "running", "done")
    assert orch("runs", "rm", again.id, "--json").document == {"removed": [again.id]}
    assert not again.path.exists()


def test_stopping_what_is_over_says_how_it_ended(orch, project: Path) -> None:
    run = made(project / "runs", "running", "failed")
    assert orch("runs", "stop", "last").out == f"{run.id} was over already: failed\n"
    assert orch("runs", "stop", "last", "--json").document["state"] == "failed"


def test_fixing_tells_what_it_closed(orch, project: Path) -> None:
    run = made(project / "runs", "running")
    found = run.state
    assert found is not None
    state.write(run.path, replace(found, owner=replace(found.owner, born="1")))
    done = orch("runs", "fix")
    assert done.out == f"closed {run.id}: its driver is gone\n"
    assert done.err == "no index: MLflow is not installed\n"
    assert orch("runs", "fix", "--json").document["closed"] == []
