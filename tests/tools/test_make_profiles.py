"""The tool that writes the profile tables: what it writes, what it notices, what it leaves alone."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from orch.models.tables import at_image_size, load

TOOL = Path(__file__).parents[2] / "tools" / "make_profiles.py"
spec = importlib.util.spec_from_file_location("make_profiles", TOOL)
assert spec is not None
assert spec.loader is not None
make_profiles = importlib.util.module_from_spec(spec)
sys.modules["make_profiles"] = make_profiles
spec.loader.exec_module(make_profiles)


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(images).mean((2, 3)))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setitem(make_profiles.RECIPES, "tiny", make_profiles.Recipe("Tiny", "torch", Tiny, image_size=8))
    assert make_profiles.main(["tiny", "--into", str(tmp_path)]) == 0
    return tmp_path / "tiny"


def test_a_written_table_says_what_grows_with_the_image(tiny: Path) -> None:
    larger = at_image_size(tiny, 16, table_size=8)
    assert larger.module("conv").flops == 4 * load(tiny).module("conv").flops
    assert larger.module("head") == load(tiny).module("head")


def test_an_unchanged_table_is_equal(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make_profiles.main(["--check", "tiny", "--into", str(tiny.parent)]) == 0
    assert "tiny: equal" in capsys.readouterr().out


def test_a_changed_table_is_reported(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tiny / "tensors.csv"
    table.write_text(table.read_text().replace("4x3x3x3", "4x3x9"))
    load.cache_clear()
    assert make_profiles.main(["--check", "tiny", "--into", str(tiny.parent)]) == 1
    assert "tiny: DIFFERENT" in capsys.readouterr().out


def test_a_missing_library_leaves_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    assert make_profiles.main(["vgg16", "--into", str(tmp_path)]) == 0
    assert list(tmp_path.iterdir()) == []
