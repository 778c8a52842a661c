"""The example of a technique from outside: its own tests pass, its README runs, and its entry point is found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import readme

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the example, outside the clone as a stranger's would be."""
    return Path(shutil.copytree(ROOT / "examples" / "half_precision", tmp_path / "half_precision"))


def test_its_own_tests_pass(package: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=package, env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{package}"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_its_readme_runs(package: Path) -> None:
    found = readme.blocks((package / "README.md").read_text(encoding="utf-8"))
    assert [block.language for block in found] == ["console"]
    assert [fault for block in found for fault in readme.faults(block, package)] == []


def test_installed_it_needs_no_project_file(package: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        "install",
        "--no-deps",
        "--no-build-isolation",
    ]
    subprocess.run([*pip, "--target", str(site), str(package)], check=True)
    listed = subprocess.run(
        [sys.executable, "-m", "orch", "show", "half-precision", "--json"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{site}"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert listed.returncode == 0, listed.stderr
    assert '"family": "orch-half-precision"' in listed.stdout
