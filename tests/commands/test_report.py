"""`orch report`: files, the answer on the terminal, and one line for what there is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch.report import data
from orch.track import indexer


@pytest.fixture(autouse=True)
def _no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer, "available", lambda: False)
    monkeypatch.delenv("ORCH_RUNS", raising=False)


def test_a_report_is_written_into_the_run(orch, project: Path, monkeypatch) -> None:
    monkeypatch.setattr(data, "FACTORS", (1.0,))
    monkeypatch.setattr(data, "LARGEST", 8)
    run = Path(orch("run", "mine", "--simulate", "--json").document["run_dir"])
    done = orch("report", "last", "--format", "csv")
    assert (done.code, done.err) == (0, "")
    assert str(run / "report" / "report.html") in done.out.splitlines()
    assert "no figure target: it was simulated, nothing was trained or measured" in done.out
    assert (run / "report" / "figures" / "regime.csv").read_text().startswith("workers,factor,")


def test_one_figure_where_it_is_wanted(orch, project: Path) -> None:
    orch("run", "mine", "--simulate")
    done = orch("report", "last", "--figure", "speedup", "--format", "csv", "--out", "there", "--json")
    assert done.document["page"] is None
    assert sorted(path.name for path in (project / "there").iterdir()) == ["speedup.csv", "speedup.txt"]
    assert done.document["answer"]
    assert orch("report", "last", "--figure", "targt").err.endswith("did you mean target? [E645]\n")
