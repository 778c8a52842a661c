"""The cells that real trials of any sweep below a directory of runs have measured, by key: a file each.

A finished cell is kept before its trial is told to the study, so a driver that is killed in between loses nothing: who
takes the trial over finds the cell. `orch plan` looks here too, without loading what a sweep needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orch.experiment.invoke import HERE
from orch.recipe import Recipe
from orch.sweep import code
from orch.sweep.settings import cell_key
from orch.track import encoding

FOLDER = ".cells"


class CellStore:
    """The kept cells below `root`."""

    def __init__(self, root: Path) -> None:
        self._folder = root / FOLDER

    def find(self, key: str) -> Mapping[str, Any] | None:
        """Return what a cell gave: `values` by metric and `run_dir`; None when it has not been measured."""
        found = encoding.read_json(self._path(key))
        return found if isinstance(found.get("values"), dict) else None

    def keep(self, key: str, values: Mapping[str, float], run_dir: str | None) -> None:
        """Keep what a cell gave."""
        encoding.write_json(self._path(key), {"values": dict(values), "run_dir": run_dir})

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"


def surroundings(
    recipe: Recipe, mode: str, on: str | None, here: bool, texts: dict[str, dict[str, str]] | None = None
) -> dict[str, Any]:
    """Return the part of a cell's key that no recipe holds; `texts` is the techniques' source, if it has been read."""
    return {
        "code": code.digests(code.sources(recipe) if texts is None else texts),
        "versions": code.versions(mode),
        "machines": code.machines(on, here),
    }


def cached(recipe: Recipe, root: Path, on: str, mode: str = "measured") -> dict[str, Mapping[str, Any]]:
    """Return the stacks of a recipe that a sweep has measured as they are, with what each gave."""
    store, around = CellStore(root), surroundings(recipe, mode, on, on in HERE)
    found = {name: store.find(cell_key(recipe, name, mode, around)) for name in recipe.stacks}
    return {name: cell for name, cell in found.items() if cell is not None}
