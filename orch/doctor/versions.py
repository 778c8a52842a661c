"""Installed packages against what orch allows, and against what it was tested with."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import orch
from orch.doctor.finding import Finding, lacking, noted, ok
from orch.doctor.software import INSTALL

_CLONE = Path(orch.__file__).resolve().parent.parent


def packages() -> Finding:
    """Compare what is installed with the versions orch allows, and with those it was tested with."""
    from packaging.requirements import InvalidRequirement, Requirement

    missing, wrong, other, right = [], [], [], 0
    tested = dict(_tested())
    for line in _requirements():
        try:
            wanted = Requirement(line)
        except InvalidRequirement:
            continue
        try:
            version = importlib.metadata.version(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(wanted.name)
            continue
        if not wanted.specifier.contains(version, prereleases=True):
            wrong.append(f"{wanted.name} {version} ({wanted.specifier})")
        elif (pin := tested.get(wanted.name.lower())) and pin != version.partition("+")[0]:
            other.append(f"{wanted.name} {version} ({pin})")
        else:
            right += 1
    if wrong:
        return lacking("packages", f"outside what orch allows: {', '.join(wrong)}", "expect errors", INSTALL)
    if missing:
        return noted("packages", f"not installed: {', '.join(missing)}", "what needs them says so", INSTALL)
    if other:
        text = f"other versions than tested: {', '.join(other)}"
        return noted("packages", text, "figures may differ", f"{INSTALL} -c constraints.txt")
    return ok(
        "packages", f"{right} as {'tested' if tested else 'allowed'}" if right else "orch's requirements are not known"
    )


def _requirements() -> list[str]:
    """Return what orch needs to plan and to run: of the installed package, else of the clone."""
    try:
        lines = importlib.metadata.requires("orch") or []
        return [re.sub(r";.*", "", line) for line in lines if "extra" not in line or re.search(r"extra == .run.", line)]
    except importlib.metadata.PackageNotFoundError:
        pass
    try:
        project = tomllib.loads((_CLONE / "pyproject.toml").read_text("utf-8"))["project"]
        return [*project["dependencies"], *project["optional-dependencies"]["run"]]
    except (OSError, KeyError, ValueError):
        return []


def _tested() -> Iterator[tuple[str, str]]:
    try:
        lines = (_CLONE / "constraints.txt").read_text("utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        name, found, version = line.partition("==")
        if found:
            yield name.strip().lower(), version.split()[0]
