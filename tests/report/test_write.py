"""What a report leaves on the disk."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

from orch.errors import OrchError
from orch.report import data
from orch.report.write import FIGURES, write

STARTS = {"pdf": b"%PDF", "png": b"\x89PNG\r\n\x1a\n"}


def test_every_figure_has_its_data_its_caption_and_both_formats(reported) -> None:
    written = reported
    assert written.page.name == "report.html"
    assert written.absent == {}
    assert len(written.files) == 4 * len(FIGURES)
    for name in FIGURES:
        files = {path.suffix[1:]: path for path in written.files if path.stem == name}
        assert set(files) == {"pdf", "png", "csv", "txt"}
        assert all(files[kind].read_bytes().startswith(start) for kind, start in STARTS.items())
        assert list(csv.DictReader(files["csv"].open(encoding="utf-8")))
        said = files["txt"].read_text("utf-8")
        assert "Mode: " in said and "n" in said and "Calibration: " in said


def test_a_simulated_run_says_which_figures_it_cannot_have(simulated, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(data, "FACTORS", (1.0,))
    written = write(data.subject(tmp_path / "runs", simulated()), tmp_path / "out", formats=["csv"])
    assert set(written.absent) == {"target", "prediction"}
    assert "nothing was trained" in written.absent["target"]


@pytest.mark.parametrize("left", [("plain", "merged"), ("plain",), ()])
def test_a_run_that_was_killed_is_reported_as_far_as_it_got(measured, tmp_path: Path, monkeypatch, left) -> None:
    monkeypatch.setattr(data, "FACTORS", (1.0,))
    run = measured()
    (run.directory.path / "results.json").unlink()
    for name in set(run.stacks) - set(left):
        (run.stack(name).folder / "steps.seed0.csv").unlink()
    about = data.subject(tmp_path / "runs", type(run)(run.directory))
    written = write(about, tmp_path / "out", formats=["csv"])
    assert written.page is not None
    text = written.page.read_text("utf-8")
    assert "the run did not finish: done; blocks done: plain" in text
    assert ("times as fast as plain" in text) == (left == ("plain", "merged"))
    assert ("fewer than two stacks finished a block" in text) == (len(left) < 2)


def test_one_figure_in_one_format_needs_no_page(simulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    about = data.subject(tmp_path / "runs", simulated())
    written = write(about, tmp_path / "out", "speedup", ["csv"])
    assert written.page is None
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["speedup.csv", "speedup.txt"]
    with pytest.raises(OrchError, match=r"figures need matplotlib; pip install 'orch\[run\]'"):
        write(about, tmp_path / "out")


@pytest.mark.parametrize(
    ("figure", "formats", "message", "code"),
    [
        ("speed-up", ["csv"], r"a report has no figure 'speed-up'; did you mean speedup\?", "E645"),
        ("speedup", ["jpg"], "a figure has no format 'jpg'; formats: pdf, png, csv", "E645"),
        ("target", ["csv"], "has no figure target: it was simulated", "E646"),
    ],
)
def test_what_there_is_not_is_one_line(simulated, tmp_path: Path, figure, formats, message, code) -> None:
    with pytest.raises(OrchError, match=message) as refused:
        write(data.subject(tmp_path / "runs", simulated()), tmp_path / "out", figure, formats)
    assert refused.value.code == code


def test_a_place_that_refuses_is_one_line(simulated, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(OrchError, match=r"cannot write .*file") as refused:
        write(data.subject(tmp_path / "runs", simulated()), tmp_path / "file", "speedup", ["csv"])
    assert refused.value.code == "E602"
