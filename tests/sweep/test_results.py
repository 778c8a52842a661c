"""Results for programs and for people."""

from __future__ import annotations

from orch.sweep.metrics import Objective, Sought, shown
from orch.sweep.results import document, lines_of, overrides_of, ranked, table_of
from orch.sweep.study import About, Record

SOUGHT = Sought((Objective("step_time", False),))


def record(number: int, state: str = "complete", value: float = 1.0, **about: object) -> Record:
    values = {"step_time": value} if state == "complete" else {}
    params = {"stack": "a", "techniques.x.size": "65536B", "train.lr": 0.1234567}
    return Record(number, state, params, About(state, values, mode="simulated", **about))  # type: ignore[arg-type]


RECORDS = [record(0, value=2.0), record(1), record(2, same_as=1), record(3, "infeasible", reason="too large")]


def test_the_document_has_the_promised_form() -> None:
    found = document("s", "simulated", RECORDS, SOUGHT, {"storage": "x"})
    assert set(found["trials"][0]) == {"number", "state", "params", "values", "mode", "run_dir"}
    assert (found["study"], found["counts"]) == ("s", {"complete": 3, "infeasible": 1})
    assert found["best"]["number"] == 1
    assert found["best"]["overrides"] == ["techniques.x.size=65536B", "train.lr=0.1234567"]
    assert found["best"]["confirmed"] is None
    assert found["objectives"] == {"step_time_s": "minimize"}


def test_a_sweep_without_a_complete_trial_has_no_best() -> None:
    found = document("s", "simulated", RECORDS[3:], SOUGHT, {})
    assert found["best"] is None
    assert table_of(found)[1] == []


def test_the_best_come_first_and_equal_cells_once() -> None:
    found = document("s", "simulated", RECORDS, SOUGHT, {})
    assert [trial["number"] for trial in ranked(found)] == [1, 0]
    headers, rows = table_of(found)
    assert headers == ["trial", "step_time_s", "stack", "techniques.x.size", "train.lr"]
    assert rows[0] == ["1", "1 s", "a", "64 KiB", "0.1235"]


def test_a_front_is_named() -> None:
    both = Sought((Objective("step_time", False), Objective("throughput", True)))
    records = [
        Record(n, "complete", {"stack": "a"}, About("complete", {"step_time": t, "throughput": s}))
        for n, (t, s) in enumerate([(2.0, 20.0), (1.0, 10.0), (3.0, 1.0)])
    ]
    found = document("s", "simulated", records, both, {})
    assert found["pareto"] == [0, 1]
    assert [trial["number"] for trial in ranked(found)] == [1, 0]


def test_lines_count_and_give_reasons() -> None:
    text = "\n".join(lines_of(document("s", "simulated", RECORDS, SOUGHT, {"stopped": "deadline"})))
    assert "4 trials: 3 complete, 1 infeasible (1 met a cell that had been run)" in text
    assert "1 x too large" in text
    assert "stopped: deadline; the same line goes on" in text


def test_metrics_for_people() -> None:
    names = ("step_time_s", "memory_bytes", "throughput_samples_per_s", "speedup", "val_loss")
    assert [shown(name, 2.0) for name in names] == ["2 s", "2 B", "2/s", "2.00x", "2"]
    assert shown("val_loss", None) == ""
    assert overrides_of({"stack": "a", "x": True, "y": None}) == ["x=true", "y=null"]
