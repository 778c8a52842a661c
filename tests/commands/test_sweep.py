"""`orch sweep` as typed: a table for people, a document for programs, a run that is kept."""

from __future__ import annotations

import json

import pytest

SWEEP = """
sweep:
  over:
    stack: [plain, merged]
    techniques.mg-wfbp.min_bucket: {low: 0B, high: 1MiB, step: 64KiB}
  minimize: step_time
  sampler: RandomSampler
"""


@pytest.fixture
def swept(project):
    """Give the project's recipe a sweep."""
    path = project / "recipes/mine.yaml"
    path.write_text(path.read_text().replace("{mg-wfbp: {planner: greedy}}", "[mg-wfbp]") + SWEEP)
    return project


def test_a_table_and_where_to_go_on(orch, swept) -> None:
    done = orch("sweep", "mine", "--simulate", "--trials", "8", "--no-track")
    assert done.code == 0
    assert "mine, simulated: 8 trials: 8 complete" in done.out
    assert "step_time_s" in done.out.splitlines()[0]


def test_one_document(orch, swept) -> None:
    done = orch("sweep", "mine", "--simulate", "--trials", "6", "--json", "--no-track")
    assert done.code == 0
    found = done.document
    assert [trial["number"] for trial in found["trials"]] == list(range(6))
    assert {"study", "trials", "best"} <= set(found)
    assert found["best"]["params"]["stack"] in ("plain", "merged")


def test_a_run_is_kept_with_a_line_a_trial(orch, swept, monkeypatch) -> None:
    monkeypatch.setattr("orch.track.indexer.available", lambda: False)
    found = orch("sweep", "mine", "--simulate", "--trials", "5", "--json").document
    run = swept / found["run_dir"]
    lines = [json.loads(line) for line in (run / "trials.jsonl").read_text().splitlines()]
    assert [line["number"] for line in lines] == list(range(5))
    assert json.loads((run / "results.json").read_text())["best"]["number"] == found["best"]["number"]
    assert orch("runs", "show", "last").code == 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["mine"], "nothing says what to run on"),
        (["mine", "--simulate", "--trials", "0"], "'--trials': Input should be greater than or equal to 1"),
        (["mine", "--simulate", "--only", "odd"], "'odd' is not one of 'failed', 'missing'"),
        (["mine", "--simulate", "sweep.over.stack=[plane]"], "'plane' is no stack of this recipe; did you mean plain?"),
    ],
)
def test_one_line_says_what_is_wrong(orch, swept, arguments: list[str], line: str) -> None:
    done = orch("sweep", *arguments)
    assert done.code == 2
    assert line in done.err
    assert done.err.count("\n") == 1
