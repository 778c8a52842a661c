"""The Makefile: says what is wrong before it begins, and starts at once when everything is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with the files that make reads, and nothing installed."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def make(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", "-C", str(clone), *arguments], capture_output=True, text=True, check=False
    )


def fake_python(clone: Path, script: str) -> str:
    path = clone / "fake-python"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return f"PYTHON={path}"


def test_an_old_python_is_named(clone: Path) -> None:
    old = fake_python(clone, 'case "$1" in -V) echo "Python 3.9.2";; *) exit 1;; esac')
    done = make(clone, "run", old)
    assert done.returncode != 0
    assert "orch needs Python 3.11 or newer;" in done.stderr
    assert "is Python 3.9.2. Try: make PYTHON=python3.11" in done.stderr
    assert not (clone / ".venv").exists()


def test_a_python_without_venv_is_named(clone: Path) -> None:
    bare = fake_python(clone, 'case "$1" in -c) exit 0;; *) echo "No module named venv" >&2; exit 1;; esac')
    done = make(clone, "run", bare)
    assert done.returncode != 0
    assert "install python3-venv (apt-get install python3-venv), then make again" in done.stderr
    assert not (clone / ".venv").exists()


def test_a_second_call_installs_nothing(clone: Path) -> None:
    stamps = clone / ".venv" / ".stamps"
    stamps.mkdir(parents=True)
    for name in ("venv", "dev", "run"):
        (stamps / name).touch()
    start = time.perf_counter()
    done = make(clone, "--dry-run", "run")
    assert time.perf_counter() - start < 1
    assert done.stdout.strip() == ".venv/bin/orch run recipes/quickstart.yaml"


def test_new_pins_are_installed(clone: Path) -> None:
    test_a_second_call_installs_nothing(clone)
    later = time.time() + 10

    os.utime(clone / "constraints.txt", (later, later))
    assert "pip install" in make(clone, "--dry-run", "run").stdout


def test_help_lists_what_issue_readers_type(clone: Path) -> None:
    out = make(clone).stdout
    assert all(f"make {target} " in out for target in ("run", "test", "lint", "bench", "matrix", "gpu"))
