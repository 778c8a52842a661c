"""The data of figures."""

from __future__ import annotations

import csv
import io

import pytest

from orch.experiment.figures import figures
from orch.experiment.predict import predict
from orch.experiment.results import document, results, simulated_document


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_measured_run_has_its_times_curves_and_timelines(finished) -> None:
    outcome = finished.outcome
    found = document(outcome, results(outcome), "measured")
    texts = figures(found, outcome.forecast, outcome)
    assert sorted(texts) == ["accuracy", "loss", "step_time", "timelines"]
    times = rows_of(texts["step_time"])
    assert [row["stack"] for row in times] == ["plain", "merged", "small"]
    assert float(times[1]["median_s"]) == found["stacks"]["merged"]["step_time_s"]["median"]
    assert float(times[1]["gain"]) == found["stacks"]["merged"]["speedup"]["median"]
    losses = [row for row in rows_of(texts["loss"]) if (row["stack"], row["seed"]) == ("small", "1")]
    assert [float(row["loss"]) for row in losses] == outcome.of("small")[1].losses
    assert len(rows_of(texts["accuracy"])) == 6 * 3


def test_timelines_begin_with_a_forward_pass_and_end_together(tiny) -> None:
    forecast = predict(tiny())
    texts = figures(simulated_document(forecast), forecast, None)
    assert sorted(texts) == ["step_time", "timelines"]
    rows = rows_of(texts["timelines"])
    longest = 2 * max(stack.step_time_s.median for stack in forecast.stacks.values())
    for name in forecast.stacks:
        own = [row for row in rows if row["stack"] == name]
        forward = min(float(row["start_s"]) for row in own if row["kind"] == "forward")
        assert forward == 0.0
        assert max(float(row["end_s"]) for row in own) == pytest.approx(longest, rel=0.2)
        assert all(0 <= float(row["start_s"]) < float(row["end_s"]) <= longest for row in own)
        assert own[0]["stream"] == "compute"


def test_computing_without_a_gap_is_one_bar_and_collectives_stay_apart(tiny) -> None:
    forecast = predict(tiny())
    rows = rows_of(figures(simulated_document(forecast), forecast, None)["timelines"])
    plain = [row for row in rows if row["stack"] == "plain"]
    assert sum(row["kind"] == "forward" for row in plain) <= 3
    sends = sum(task.op.kind == "all_reduce" for task in forecast.stacks["plain"].plan.steps[0])
    assert sum(row["kind"] == "all_reduce" for row in plain) >= sends
