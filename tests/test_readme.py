"""README and the documents: every block that claims to run does, and the picture is the one the simulator draws."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orch.recipe import load
from tools import readme

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_block_runs(name: str, tmp_path: Path) -> None:
    found = readme.blocks((ROOT / name).read_text(encoding="utf-8"))
    assert [fault for block in found for fault in readme.faults(block, tmp_path)] == []


def test_the_readme_has_blocks_of_every_kind() -> None:
    found = readme.blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    assert {block.language for block in found} >= {"sh", "console", "yaml", "python"}


def test_the_recorded_run_is_of_the_quickstart_as_it_is() -> None:
    ((command, output),) = readme.recorded((ROOT / "README.md").read_text(encoding="utf-8"))
    assert command == "orch run quickstart"
    header, _, *rows = output.split("\n\n")[0].splitlines()
    columns = [column.strip() for column in re.split(r"\s{2,}", header)]
    assert columns == ["stack", "step time", "gain", "predicted", "payload", "on the wire", "loss", "accuracy"]
    assert [row.split()[0] for row in rows] == list(load(ROOT / "recipes" / "quickstart.yaml").stacks)


@pytest.mark.parametrize("name", [*DOCUMENTS, "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    targets = [target for target in readme.links(text) if "://" not in target]
    assert [target for target in targets if not ((ROOT / name).parent / target).exists()] == []
