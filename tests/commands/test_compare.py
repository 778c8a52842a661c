"""`orch compare`: a table and waterfalls for people, a document for programs, one line for what cannot be compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch.track import indexer


@pytest.fixture(autouse=True)
def _no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer, "available", lambda: False)
    monkeypatch.delenv("ORCH_RUNS", raising=False)


@pytest.fixture
def run(orch, project: Path) -> str:
    """The id of a simulated run of the project's recipe."""
    return Path(orch("run", "mine", "--simulate", "--json").document["run_dir"]).name


def test_a_run_is_compared_with_its_baseline(orch, run: str) -> None:
    done = orch("compare", "last")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == f"simulated, 4 workers: run {run}"
    assert lines[5].split()[:1] == ["merged"]
    assert "where the time of a step went, merged against plain" in lines
    assert max(len(line) for line in lines) <= 120


def test_the_document_adds_up(orch, run: str) -> None:
    found = orch("compare", f"{run}:merged", f"{run[-4:]}:plain", "--json").document
    (pair,) = found["pairs"]
    assert (pair["reference"]["stack"], pair["own"]["stack"]) == ("merged", "plain")
    assert pair["difference_s"] == pytest.approx(pair["own"]["step_time_s"] - pair["reference"]["step_time_s"])
    assert sum(part["change_s"] for part in pair["waterfall"]) == pytest.approx(pair["difference_s"])
    assert pair["speedup"]["lo"] <= pair["speedup"]["median"] <= pair["speedup"]["hi"]


def test_what_cannot_be_compared_is_one_line(orch, run: str) -> None:
    orch("run", "mine", "--simulate", "train.batch_per_worker=16")
    done = orch("compare", run, "last")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("these cannot be compared: batch per worker: 32 in")
    assert done.err.endswith("--anyway compares them all the same [E644]\n")
    assert orch("compare", run, "last", "--anyway").code == 0
    assert orch("compare", f"{run}:plain").err.startswith("there is nothing to compare with; name two stacks")
    assert orch("compare", "last:plan").err.rstrip().endswith("has no stack 'plan'; did you mean plain? [E641]")
