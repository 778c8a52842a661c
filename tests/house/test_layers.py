"""The import contracts of pyproject.toml hold, and break where they should: each is tried on a tree broken on purpose."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BREACHES = {
    "upwards": ("orch/errors.py", "import orch.cli"),
    "runtime meets simulator": ("orch/runtime/__init__.py", "import orch.simulate"),
    "a part nobody placed": ("orch/stray.py", '"""Stray."""'),
    "orch names a technique": ("orch/stack.py", "import techniques.schedules.wfbp"),
    "a technique reads recipes": ("techniques/schedules/wfbp.py", "import orch.recipe"),
    "a plan loads torch": ("orch/plan/plan.py", "def load():\n    import torch\n"),
    "a worker knows mlflow": ("orch/runtime/__init__.py", "import mlflow"),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The packages and their contracts, without anything else."""
    for name in ("orch", "techniques"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "profiles"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    return tmp_path


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports_command; lint_imports_command()"
    )
    return subprocess.run(
        [sys.executable, "-c", code, "--no-cache"], cwd=tree, capture_output=True, text=True, check=False
    )


def test_every_contract_is_kept(tree: Path) -> None:
    done = lint(tree)
    assert done.returncode == 0, done.stdout
    assert " 0 broken" in done.stdout


@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_is_found(tree: Path, name: str) -> None:
    file, line = BREACHES[name]
    path = tree / file
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    path.write_text(f"{before}\n\n{line}\n", encoding="utf-8")
    done = lint(tree)
    assert done.returncode == 1
    assert "BROKEN" in done.stdout or "missing" in done.stdout.lower()
