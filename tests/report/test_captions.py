"""A caption alone says what a figure is worth."""

from __future__ import annotations

from pathlib import Path

from orch.report import data
from orch.report.captions import TITLES, _started, calibration, caption
from orch.report.write import FIGURES


def test_each_names_mode_n_and_calibration(measured, tmp_path: Path) -> None:
    about = data.subject(tmp_path / "runs", measured())
    mode = {"regime": "simulated", "scaling": "measured and simulated", "timelines": "measured and simulated"}
    for name in FIGURES:
        said = caption(name, about)
        assert f"Mode: {mode.get(name, 'measured')}." in said
        assert ("n = 4 blocks of 1 seed." in said) == (name != "regime")
        assert "measured in this run, less than a minute ago" in said
        assert ("Interval: none." in said) == (name != "speedup")
        assert name in TITLES


def test_the_interval_says_for_how_many_it_holds(measured, tmp_path: Path) -> None:
    said = caption("speedup", data.subject(tmp_path / "runs", measured()))
    assert "95 % t interval of paired log ratios, widened so that all 2 hold together" in said


def test_a_cluster_file_that_gives_a_date_has_an_age(simulated, tmp_path: Path) -> None:
    plain = data.subject(tmp_path / "runs", simulated())
    assert calibration(plain) == "measured compute, measured links; the cluster file gives no date"
    dated = simulated("cluster.device.source=measured 2020-01-01 on two machines")
    age = calibration(data.subject(tmp_path / "runs", dated))
    assert age.endswith(" days old")
    assert int(age.split()[-3]) > 2000


def test_a_renamed_directory_is_as_old_as_it_was() -> None:
    old = _started({"id": "20200101-000000-abcd"}, "copy")
    assert old == _started({}, "20200101-000000-abcd")
    assert old is not None
    assert old.year == 2020
    assert _started({}, "copy") is None


def test_a_target_says_who_reached_it_and_when(measured, tmp_path: Path) -> None:
    said = caption("target", data.subject(tmp_path / "runs", measured("target={metric: val_accuracy, reach: 0.9}")))
    assert "Target val_accuracy 0.9: plain never, merged never, small never." in said
