"""Commands that need more than the base installation (no torch, ray, mlflow, optuna ...): one line, and nothing half-made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The base installation, as far as imports can tell: a path finder that does not see what the extra `run` brings.
BASE = """
import sys
from importlib.machinery import PathFinder

MISSING = "fsspec matplotlib mlflow mlxtend optuna psutil ray safetensors scipy sklearn torch transformers".split()

class Base:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in MISSING else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Base
from orch.cli import main
raise SystemExit(main())
"""


def base(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BASE, *arguments]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "quickstart"],
        ["run", "quickstart", "--on", "processes"],
        ["run", "quickstart", "--on", "emulate"],
        ["sweep", "quickstart-search", "--trials", "2"],
        ["sweep", "quickstart-search", "--trials", "2", "--simulate"],
        ["calibrate", "local-4", "--on", "processes"],
        ["up", "emulated-4x200mbit"],
        ["advise", "quickstart", "--measure", "1"],
        ["test", "dear"],
        ["ui"],
    ],
    ids=" ".join,
)
def test_what_is_missing_is_said_in_one_line(arguments: list[str], tmp_path: Path) -> None:
    done = base(tmp_path, *arguments)
    said = [line for line in done.stderr.splitlines() if not line.lstrip().startswith("0.")]
    assert done.returncode == 2, done.stderr
    assert said[-1].endswith("[E003]")
    assert "pip install 'orch[run]'" in said[-1]
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [["check", "quickstart"], ["plan", "quickstart"], ["show", "dear"], ["doctor"]], ids=" ".join
)
def test_what_the_base_installation_can_do_it_does(arguments: list[str], tmp_path: Path) -> None:
    assert base(tmp_path, *arguments).returncode == 0
