"""`orch doctor` as a user types it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import orch.doctor
from orch.doctor import Finding, Leftover, Report, State, Way
from orch.gang import emulate_leftovers, ray_local

REPORT = Report(
    "node7, Linux 6.1 x86_64",
    [
        Way("local", True, "a Ray of our own on this machine"),
        Way("emulate", False, "no tc", "apt-get install iproute2"),
    ],
    [Finding("cores", State.OK, "8"), Finding("memory", State.NOTE, "1.0 GiB", "little", "free some")],
)


@pytest.fixture(autouse=True)
def examined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Look at a machine of paper, without sessions of Ray."""
    monkeypatch.setattr(orch.doctor, "examine", lambda runs: REPORT)
    monkeypatch.setattr(emulate_leftovers, "leftovers", list)
    monkeypatch.setattr(ray_local, "_temp_root", lambda: str(tmp_path))


def test_ways_and_findings_are_a_line_each(orch: Callable[..., Any]) -> None:
    done = orch("doctor")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "node7, Linux 6.1 x86_64",
        "",
        "ways to reach workers (--on)",
        "  yes   local       a Ray of our own on this machine",
        "  no    emulate     no tc; apt-get install iproute2",
        "",
        "this machine",
        "  ok    cores       8",
        "  note  memory      1.0 GiB; little; free some",
    ]


def test_json_has_the_same(orch: Callable[..., Any]) -> None:
    document = orch("doctor", "--json").document
    assert document["ways"]["emulate"] == {"works": False, "about": "no tc", "fix": "apt-get install iproute2"}
    assert document["findings"][1] == {
        "name": "memory", "state": "note", "found": "1.0 GiB", "cost": "little", "fix": "free some",
    }  # fmt: skip
    assert document["leftovers"] == []


def test_clean_removes_what_was_left_and_says_so(orch: Callable[..., Any], tmp_path: Path) -> None:
    assert orch("doctor", "--clean").out == "nothing was left behind\n"
    half = tmp_path / "runs" / "mine" / ".removed-x"
    half.mkdir(parents=True)
    assert "left 1 thing behind: orch doctor --clean" in orch("doctor").err
    done = orch("doctor", "--clean", "--json")
    assert done.document == {"removed": [f"half-removed run {half}"]}
    assert not half.exists()


def test_what_cannot_be_removed_is_one_line(orch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise PermissionError(13, "Permission denied")

    import orch.doctor as doctor

    monkeypatch.setattr(doctor, "leftovers", lambda runs: [Leftover("Ray session", "x", refuse)])
    done = orch("doctor", "--clean")
    assert done.code == 2
    assert (
        done.err
        == "cannot remove Ray session x: Permission denied; it may belong to another user: run as its owner, or as root [E020]\n"
    )
