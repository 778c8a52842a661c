"""Pictures are drawn from CSV files alone, and their absence is no fault."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orch.experiment.figures import figures
from orch.experiment.pictures import draw
from orch.experiment.results import document, results

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def folder(finished, tmp_path: Path) -> Path:
    outcome = finished.outcome
    for name, text in figures(document(outcome, results(outcome), "measured"), outcome.forecast, outcome).items():
        (tmp_path / f"{name}.csv").write_text(text, encoding="utf-8")
    return tmp_path


def test_every_figure_is_drawn(folder: Path) -> None:
    written = draw(folder, "tiny")
    assert [path.name for path in written] == ["step_time.png", "step_time.pdf", "loss.png", "timelines.png"]
    for path in written:
        assert path.read_bytes().startswith(b"%PDF" if path.suffix == ".pdf" else PNG)
        assert path.stat().st_size > 5000


def test_a_simulated_run_has_fewer_and_an_empty_table_none(folder: Path) -> None:
    for name in ("loss", "accuracy"):
        (folder / f"{name}.csv").unlink()
    (folder / "timelines.csv").write_text("stack,mode,stream,task,kind,start_s,end_s\n")
    assert [path.name for path in draw(folder)] == ["step_time.png", "step_time.pdf"]


def test_without_matplotlib_nothing_is_drawn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert draw(folder) == []
    assert not list(folder.glob("*.png"))
