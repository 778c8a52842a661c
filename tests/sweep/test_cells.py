"""Kept cells: found by whoever has an equal one."""

from __future__ import annotations

from orch.sweep.cells import CellStore, cached, surroundings
from orch.sweep.settings import Settings, cell_key


def test_a_cell_is_kept_and_found(tmp_path) -> None:
    store = CellStore(tmp_path)
    assert store.find("ab12") is None
    store.keep("ab12", {"step_time": 1.0}, "runs/x")
    assert CellStore(tmp_path).find("ab12") == {"values": {"step_time": 1.0}, "run_dir": "runs/x"}


def test_a_damaged_cell_is_not_there(tmp_path) -> None:
    (tmp_path / ".cells/ab").mkdir(parents=True)
    (tmp_path / ".cells/ab/ab12.json").write_text('{"values": [1')
    assert CellStore(tmp_path).find("ab12") is None


def test_a_stack_of_a_recipe_that_a_sweep_has_measured_is_found(recipe, tmp_path) -> None:
    trial = Settings(recipe()).trial({"stack": "merged", "techniques.mg-wfbp.planner": "exact"})
    key = cell_key(trial.recipe, "merged", "measured", surroundings(recipe(), "measured", "local", True))
    CellStore(tmp_path).keep(key, {"step_time": 1.0}, None)
    assert list(cached(recipe(), tmp_path, "processes")) == ["merged"]
    assert cached(recipe("measure.blocks=7"), tmp_path, "local") == {}
    assert cached(recipe(), tmp_path, "10.0.0.1:6379") == {}
