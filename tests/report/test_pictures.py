"""Pictures are drawn from CSV files alone, and their absence is no fault."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from orch.report.pictures import draw, drawn
from orch.report.style import rows_of

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def folder(measured, tmp_path: Path) -> Path:
    """The CSV files that a run leaves."""
    return Path(shutil.copytree(measured().directory.path / "figures", tmp_path / "figures"))


def test_every_figure_is_drawn(folder: Path) -> None:
    written = draw(folder, "tiny")
    assert [path.name for path in written] == ["step_time.png", "step_time.pdf", "loss.png", "timelines.png"]
    for path in written:
        assert path.read_bytes().startswith(b"%PDF" if path.suffix == ".pdf" else PNG)
        assert path.stat().st_size > 5000


def test_a_simulated_run_has_fewer_and_an_empty_table_none(folder: Path) -> None:
    for name in ("loss", "accuracy"):
        (folder / f"{name}.csv").unlink()
    (folder / "timelines.csv").write_text("stack,mode,stream,task,kind,start_s,end_s,critical\n")
    assert [path.name for path in draw(folder)] == ["step_time.png", "step_time.pdf"]


def test_a_figure_of_an_older_run_has_no_critical_path_and_is_drawn(folder: Path) -> None:
    path = folder / "timelines.csv"
    path.write_text("".join(f"{line.rpartition(',')[0]}\n" for line in path.read_text().splitlines()))
    assert folder / "timelines.png" in draw(folder)


def test_without_matplotlib_nothing_is_drawn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert draw(folder) == []
    assert not list(folder.glob("*.png"))


def test_the_same_table_gives_the_same_bytes() -> None:
    tables = {"breakdown": rows_of("stack,mode,class,seconds_a_step\na,measured,compute,2.0\n")}
    first, second = (drawn("breakdown", tables, "", ("png", "svg", "pdf")) for _ in range(2))
    assert first == second
