"""The tables behind the figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch.experiment.predict import predict
from orch.report import data
from orch.report.data import Subject
from orch.report.stored import StoredRun


@pytest.fixture
def about(measured, tmp_path: Path) -> Subject:
    return data.subject(tmp_path / "runs", measured())


def test_gains_have_intervals_and_ceilings(about: Subject) -> None:
    rows = {row["stack"]: row for row in data.speedup(about).dicts()}
    assert list(rows) == ["plain", "merged", "small"]
    assert rows["plain"]["gain"] == 1.0 and rows["plain"]["lo"] is None
    assert rows["merged"]["distinguishable"] is True and rows["small"]["distinguishable"] is False
    assert rows["merged"]["lo"] < rows["merged"]["gain"] < rows["merged"]["hi"]
    assert rows["plain"]["ceiling_gain"] >= 1.0
    # What a compressor computes is not communication: its ceiling is lower.
    assert rows["small"]["ceiling_gain"] < rows["merged"]["ceiling_gain"]
    assert [rows[name]["lossless"] for name in rows] == [True, True, False]


def test_where_the_time_goes_adds_up_to_the_step(about: Subject) -> None:
    rows = data.breakdowns(about).dicts()
    for name, stack in about.run.stacks.items():
        assert sum(row["seconds_a_step"] for row in rows if row["stack"] == name) == pytest.approx(stack.step_time_s)


def test_timelines_show_the_baseline_and_the_fastest_other(about: Subject) -> None:
    rows = data.timelines(about).dicts()
    assert list(dict.fromkeys(row["stack"] for row in rows)) == ["plain", "merged"]
    for name in ("plain", "merged"):
        marked = [row for row in rows if row["stack"] == name and row["critical"]]
        assert marked and {row["mode"] for row in marked} == {"simulated"}


def test_other_clusters_are_simulated_and_the_own_one_is_marked(about: Subject) -> None:
    rows = data.regime(about).dicts()
    own = {row["stack"]: row["step_time_s"] for row in rows if row["own"]}
    recipe = about.recipe
    assert recipe is not None
    expected = {name: stack.step_time_s.median for name, stack in predict(recipe, about.inputs).stacks.items()}
    assert own == pytest.approx(expected)
    assert {row["factor"] for row in rows} == set(data.FACTORS)
    slow = [row["bit_per_s"] for row in rows if row["factor"] == 0.5]
    fast = [row["bit_per_s"] for row in rows if row["factor"] == 1.0]
    assert fast[0] == pytest.approx(2 * slow[0])


def test_scaling_joins_what_was_measured_elsewhere(measured, tmp_path: Path) -> None:
    measured("cluster.devices_per_node=4")
    other = measured("cluster.devices_per_node=3", "model.width=8")
    about = data.subject(tmp_path / "runs", measured())
    assert [run.workers for run in about.siblings] == [4]
    assert other.id not in [run.id for run in about.siblings]
    rows = data.scaling(about).dicts()
    plain = [row for row in rows if row["stack"] == "plain" and row["mode"] == "measured"]
    assert [row["workers"] for row in plain] == [2, 4]
    assert plain[0]["samples_per_s"] == pytest.approx(2 * 8 / plain[0]["step_time_s"])
    assert [row["efficiency"] for row in plain] == [None, None]  # nobody measured one worker
    one = next(row for row in rows if row["workers"] == 1 and row["stack"] == "plain")
    assert (one["mode"], one["efficiency"]) == ("simulated", 1.0)


def test_one_size_is_no_curve(simulated, tmp_path: Path, monkeypatch) -> None:
    about = data.subject(tmp_path / "runs", simulated())
    monkeypatch.setattr(data, "explore", lambda *_: [data.Cell(2, 1.0, "plain", 0.1)])
    assert data.scaling(about).rows == ()
    assert len(data.regime(about).rows) == 1


def test_quality_over_time_and_over_bytes(about: Subject) -> None:
    rows = [row for row in data.target(about).dicts() if row["stack"] == "small"]
    assert [row["steps"] for row in rows] == list(range(1, 9))
    assert rows[-1]["clock_s"] == pytest.approx(2 * (0.1 + 0.119 + 0.111 + 0.1))
    wire = about.run.stack("small").result["wire_bytes_per_worker"]
    assert rows[-1]["sent_bytes"] == pytest.approx(8 * wire)
    assert rows[0]["reach"] == 1.9


def test_quality_is_that_of_the_target(measured, tmp_path: Path) -> None:
    run = measured("target={metric: val_accuracy, reach: 0.4}")
    rows = [row for row in data.target(data.subject(tmp_path / "runs", run)).dicts() if row["stack"] == "plain"]
    assert [row["value"] for row in rows] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


def test_the_front_holds_who_is_not_beaten_in_both(about: Subject) -> None:
    assert data._undominated(1.0, 2.0, [("a", 1.0, 2.0), ("b", 2.0, 1.0)])
    assert not data._undominated(1.0, 2.0, [("a", 1.0, 1.9)])
    assert not data._undominated(1.0, float("nan"), [])
    rows = {row["stack"]: row for row in data.pareto(about).dicts()}
    assert rows["merged"]["front"] == 1


def test_predictions_stand_beside_what_was_measured(about: Subject) -> None:
    rows = data.prediction(about).dicts()
    steps = {row["stack"]: row for row in rows if row["what"] == "step"}
    assert steps["merged"]["measured_s"] == about.run.stack("merged").step_time_s
    assert {row["what"] for row in rows} >= {"compute", "exposed:net.inter"}


def test_a_recipe_that_cannot_be_loaded_costs_two_figures(measured, tmp_path: Path) -> None:
    run = measured()
    path = run.directory.path / "recipe.yaml"
    path.write_text(path.read_text("utf-8").replace("use: resnet-digits", "use: resnet-nowhere"), encoding="utf-8")
    about = data.subject(tmp_path / "runs", StoredRun(run.directory))
    assert data.regime(about).rows == ()
    assert "its recipe cannot be loaded here" in about.lacks[0]
    assert data.speedup(about).rows
