"""Installed packages against allowed and tested versions."""

from __future__ import annotations

from importlib import metadata

import pytest

from orch.doctor import versions
from orch.doctor.finding import State


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch):
    """Say what orch requires and was tested with, and what is installed."""

    def say(requirements: list[str], tested: dict[str, str], installed: dict[str, str]) -> None:
        def version(name: str) -> str:
            if name not in installed:
                raise metadata.PackageNotFoundError(name)
            return installed[name]

        monkeypatch.setattr(versions, "_requirements", lambda: requirements)
        monkeypatch.setattr(versions, "_tested", lambda: iter(tested.items()))
        monkeypatch.setattr(metadata, "version", version)

    return say


def test_all_as_tested(wanted) -> None:
    wanted(
        ["torch>=2.13,<3", "ray>=2.60,<3"],
        {"torch": "2.13.0", "ray": "2.60.0"},
        {"torch": "2.13.0+cpu", "ray": "2.60.0"},
    )
    assert versions.packages().text() == "2 as tested"


def test_a_version_outside_the_bounds_is_a_lack(wanted) -> None:
    wanted(["torch>=2.13,<3", "ray>=2.60,<3"], {}, {"torch": "2.9.1", "ray": "2.60.0"})
    found = versions.packages()
    assert found.state is State.LACK
    assert "torch 2.9.1 (<3,>=2.13)" in found.found


def test_what_is_missing_or_merely_other_is_a_note(wanted) -> None:
    wanted(["torch>=2.13,<3", "optuna>=5"], {"torch": "2.13.0"}, {"torch": "2.13.1"})
    assert versions.packages().found == "not installed: optuna"
    wanted(["torch>=2.13,<3"], {"torch": "2.13.0"}, {"torch": "2.13.1"})
    assert versions.packages().found == "other versions than tested: torch 2.13.1 (2.13.0)"


def test_the_requirements_of_this_clone_are_known() -> None:
    assert any(line.startswith("torch") for line in versions._requirements())
    assert any(line.startswith("pydantic") for line in versions._requirements())
    assert not any(line.startswith("mypy") for line in versions._requirements())
    assert "torch" in dict(versions._tested())
