"""The wheel: what it holds, and that shipped recipes, clusters and techniques resolve by name outside a clone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel and install it, without its dependencies, into a folder of its own."""
    wheels = tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(ROOT)], check=True)
    (wheel,) = wheels.glob("orch-*.whl")
    target = tmp_path_factory.mktemp("site")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True)
    return target


def outside(installed: Path, *arguments: str) -> str:
    """Run Python on the installed wheel, in a folder that knows nothing of the clone."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=installed, env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_everything_that_is_found_by_name_is_inside(installed: Path) -> None:
    for kind in ("recipes", "clusters"):
        shipped = {path.name for path in (installed / "orch" / "shipped" / kind).iterdir()}
        assert shipped == {path.name for path in (ROOT / kind).iterdir()}
    for package in ("orch", "techniques"):
        inside = {path.relative_to(installed) for path in (installed / package).rglob("*.py")}
        assert inside == {path.relative_to(ROOT) for path in (ROOT / package).rglob("*.py")}


def test_nothing_of_the_clone_alone_is_inside(installed: Path) -> None:
    assert {path.name for path in installed.iterdir()} - {"bin"} == {"orch", "techniques", "orch-0.1.0.dist-info"}


def test_the_installed_package_is_the_one_that_runs(installed: Path) -> None:
    assert Path(outside(installed, "-c", "import orch; print(orch.__file__)").strip()).is_relative_to(installed)


@pytest.mark.parametrize("kind", ["recipes", "clusters", "techniques"])
def test_what_is_shipped_resolves_by_name(installed: Path, kind: str) -> None:
    listed = {line.split()[0] for line in outside(installed, "-m", "orch", "list", kind).splitlines()[2:]}
    here = {path.stem for path in (ROOT / kind).glob("*.yaml")} or {"mg-wfbp", "wfbp"}
    assert here <= listed
