"""What killed runs left: found, removed, and nothing else touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orch.doctor import leftovers, remove
from orch.doctor.leftovers import Leftover
from orch.gang import emulate_leftovers, ray_local
from orch.track import directory, state
from orch.track.directory import Facts


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> list[emulate_leftovers.Leftover]:
    """What is left of emulated clusters: nothing of anybody else's."""
    found: list[emulate_leftovers.Leftover] = []
    monkeypatch.setattr(emulate_leftovers, "leftovers", lambda: found)
    return found


def gone_pid() -> int:
    """Return the id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_session_whose_driver_is_gone_is_ended_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_local, "_temp_root", lambda: str(tmp_path))
    dead, alive = tmp_path / f"orch-ray-{gone_pid()}-abc", tmp_path / f"orch-ray-{os.getpid()}-abc"
    for path in (dead, alive, tmp_path / "orch-other"):
        path.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(3600)"], env={**os.environ, "ORCH_SESSION": dead.name}
    )
    try:
        found = leftovers(tmp_path / "runs")
        assert [str(one) for one in found] == [f"Ray session {dead}"]
        assert remove(found) == []
        assert process.wait(10) == -9
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([alive.name, "orch-other"])
        assert leftovers(tmp_path / "runs") == []
    finally:
        process.kill()
        process.wait()


def test_a_run_whose_driver_is_gone_gets_its_true_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_local, "_temp_root", lambda: str(tmp_path / "none"))
    run = directory.create(tmp_path, Facts("one", "measured", ("a",)))
    going = directory.create(tmp_path, Facts("two", "measured", ("a",)))
    for each in (run, going):
        state.write(each.path, state.new("running"))
    file = run.path / state.FILE
    told = json.loads(file.read_text())
    told["owner"] |= {"pid": gone_pid(), "born": "1"}
    file.write_text(json.dumps(told))
    half = tmp_path / "one" / ".removed-x"
    half.mkdir()
    found = leftovers(tmp_path)
    assert [str(one) for one in found] == [f"half-removed run {half}", f"run without a driver {run.id}"]
    assert remove(found) == []
    assert run.state is not None
    assert going.state is not None
    assert (run.state.status, going.state.status, half.exists()) == ("killed", "running", False)
    assert leftovers(tmp_path) == []


def test_what_resists_is_told_with_its_reason() -> None:
    def refuse() -> None:
        raise PermissionError(13, "Permission denied")

    one = Leftover("Ray session", "x", refuse)
    assert remove([one]) == [(one, "Permission denied")]


def test_parts_of_emulated_clusters_are_taken_away_in_their_order(
    emulated: list[emulate_leftovers.Leftover], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ray_local, "_temp_root", lambda: str(tmp_path / "none"))
    emulated += [
        emulate_leftovers.Leftover("orch-00aa11", "namespace", "orch-00aa11-0"),
        emulate_leftovers.Leftover("orch-00aa11", "directory", "/tmp/orch-00aa11"),
    ]
    asked: list[str] = []

    def take_away(parts: list[emulate_leftovers.Leftover]) -> list[emulate_leftovers.Leftover]:
        asked.extend(part.name for part in parts)
        return [part for part in parts if part.kind == "namespace"]  # as for an ordinary user

    monkeypatch.setattr(emulate_leftovers, "remove", take_away)
    found = leftovers(tmp_path)
    assert str(found[0]) == "namespace orch-00aa11-0 of emulated cluster orch-00aa11"
    assert remove(found) == [(found[0], "Operation not permitted")]
    assert asked == ["orch-00aa11-0", "/tmp/orch-00aa11"]
