"""Disks of runs and of temporary files: room, rights, and network file systems by name."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from orch.doctor import disks
from orch.doctor.finding import State
from orch.track.mounts import Mount


@pytest.fixture(autouse=True)
def own_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def test_a_directory_that_is_not_made_yet_is_looked_at_and_not_made(tmp_path: Path) -> None:
    found = disks.runs_disk(tmp_path / "not" / "yet")
    assert found.state is State.OK
    assert found.found.startswith(f"{tmp_path / 'not' / 'yet'} on ")
    assert list(tmp_path.iterdir()) == []


def test_sqlite_on_a_network_file_system_is_told_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "mount_of", lambda path: Mount("/home", "nfs4"))
    found = disks.runs_disk(tmp_path)
    assert found.state is State.NOTE
    assert f"{tmp_path} on nfs4" in found.found
    assert "sqlite's locks are not sure there" in found.cost
    assert found.fix.startswith("MLFLOW_TRACKING_URI=sqlite:////")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server:5000")  # then no sqlite file lies there
    assert disks.runs_disk(tmp_path).state is State.OK
    assert disks.temporary_disk().state is State.LACK


def test_a_full_disk_and_one_that_refuses_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=10, f_frsize=1 << 20))
    assert disks.runs_disk(tmp_path).text().endswith("10 MiB free; a run that fills it stops; make room")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert disks.runs_disk(tmp_path).state is State.LACK


def test_the_temporary_disk_is_the_one_that_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    assert str(tmp_path) in disks.temporary_disk().found
