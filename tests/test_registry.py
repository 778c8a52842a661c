"""The registry: techniques that installed packages offer are found, and looking for them costs next to nothing."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from orch import registry

MODULE = """
from orch.technique import Knobs, Slot, Technique

technique = Technique(
    name="theirs", slot=Slot.SCHEDULE, rewrite=lambda plan, context, config: plan, source="them", lossless=True
)
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of sys.path with one installed package that offers the technique `theirs`."""
    site = tmp_path / "site"
    info = site / "theirs-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "their_module.py").write_text(MODULE, encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[orch.techniques]\ntheirs = their_module\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    return site


def test_a_package_offers_a_technique(installed: Path) -> None:
    place = registry.techniques()["theirs"]
    assert (place.module, place.family) == ("their_module", "theirs")
    assert registry.technique("theirs").name == "theirs"


def test_without_such_a_package_no_metadata_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))  # a path of its own: what another path held is remembered
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **group: pytest.fail("parsed everything"))
    assert "mg-wfbp" in registry.techniques()


def test_an_archive_on_the_path_is_looked_into(tmp_path: Path) -> None:
    archive = tmp_path / "all.zip"
    archive.write_bytes(b"PK")
    assert registry._offers_techniques(str(archive))
    assert not registry._offers_techniques(str(tmp_path / "absent"))
