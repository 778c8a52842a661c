"""Taking up a run that ended before it was done: which one, with which recipe, and whether it is still the same run.

A run goes on only as what it began as: the same resolved recipe, the same code. What differs is named and refused.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, cast

import orch
from orch.errors import OrchError
from orch.recipe import Recipe
from orch.track import directory, encoding, query, state
from orch.track.directory import RunDirectory

CODE = "code.json"
_PACKAGES = ("torch", "numpy")


def find(root: Path, key: str, recipe: str | None) -> RunDirectory:
    """Return the run that `key` names; `last` is the last one that is not done, of `recipe` if one is named.

    OrchError: there is none (E802), it is done, goes on elsewhere, or was never measured (E820).
    """
    if key == query.LAST:
        runs = [run for run in directory.find_all(root) if _unfinished(run)]
        if recipe is not None:
            runs = [run for run in runs if recipe in _names(run)]
        if not runs:
            of = "" if recipe is None else f" of {recipe}"
            raise OrchError(f"no run{of} under {root} is unfinished", code="E820", hint="orch runs lists all")
        return max(runs, key=lambda run: run.id)
    found = query.find(root, key)
    settled = state.settle(found.path)
    if settled is None or found.facts.get("mode") == "simulated":
        raise OrchError(f"run {found.id} cannot go on: it trained nothing", code="E820", hint="begin a new run")
    if settled.status == "done":
        raise OrchError(f"run {found.id} is done; nothing is left of it", code="E820", hint="begin a new run")
    if settled.is_open:
        where = f"pid {settled.owner.pid} on {settled.owner.host}"
        raise OrchError(f"run {found.id} goes on already ({where})", code="E820", hint="orch runs stop ends it")
    return found


def asked_for(run: RunDirectory) -> tuple[str, tuple[str, ...], str | None]:
    """Return how the run was started: its recipe, the overrides, and how workers were reached."""
    extra = cast("Mapping[str, Any]", run.facts.get("extra") or {})
    on = extra.get("on")
    return str(run.facts.get("origin", "")), tuple(extra.get("overrides", ())), None if on is None else str(on)


def refuse_changed(run: RunDirectory, recipe: Recipe) -> None:
    """Raise OrchError (E820) naming the first value of the recipe, or file of the code, that is no longer what it was."""
    before, now = directory.read_recipe(run), directory.recorded(recipe.resolved())
    for path, old, new in _differences(before, now, ()):
        raise OrchError(f"the recipe of run {run.id} has changed: {path} was {old}, and is {new}", code="E820",
                        hint="put it back, or begin a new run")  # fmt: skip
    known = encoding.read_json(run.path / CODE)
    current = code_of(recipe)
    changed = sorted(name for name in known.keys() | current.keys() if known.get(name) != current.get(name))
    if known and changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise OrchError(f"the code of run {run.id} has changed: {changed[0]}{more}", code="E820",
                        hint="put it back, or begin a new run")  # fmt: skip


def code_of(recipe: Recipe) -> dict[str, str]:
    """Return a digest of every source file that a run of `recipe` rests on, and the versions of what it computes with."""
    folders = [Path(orch.__file__).parent]
    for stack in recipe.stacks.values():
        for member in stack.members:
            module = sys.modules.get(member.technique.rewrite.__module__)
            if module is not None and module.__file__ is not None:
                folders.append(Path(module.__file__).parent)
    digests = {package: _version(package) for package in _PACKAGES}
    python = recipe.spec.model.python
    for path in [*(path for folder in dict.fromkeys(folders) for path in folder.rglob("*.py")), *_sources(python)]:
        # Two folders of the path tell files apart and stay when an environment is moved.
        name = "/".join(path.parts[-3:])
        digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return dict(sorted(digests.items()))


def _sources(python: str | None) -> Iterator[Path]:
    """Yield the files of the user's module or package, which is not imported."""
    if python is None:
        return
    spec = PathFinder.find_spec(python.partition(":")[0].partition(".")[0], [str(Path.cwd()), *sys.path])
    if spec is not None and spec.submodule_search_locations:
        yield from (path for folder in spec.submodule_search_locations for path in Path(folder).rglob("*.py"))
    elif spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
        yield Path(spec.origin)


def _names(run: RunDirectory) -> tuple[str, ...]:
    """Return what a user may call the recipe of a run: its name, its file, or the file's name."""
    origin = str(run.facts.get("origin", ""))
    return run.recipe_name, origin, Path(origin).stem, Path(origin).name


def _unfinished(run: RunDirectory) -> bool:
    settled = state.settle(run.path)
    return (
        run.facts.get("mode") == "measured"
        and settled is not None
        and not (settled.is_open or settled.status == "done")
    )


def _differences(before: Any, now: Any, path: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*before, *now]):
            yield from _differences(before.get(key), now.get(key), (*path, str(key)))
    elif before != now and not (before != before and now != now):
        yield ".".join(path), _shown(before), _shown(now)


def _shown(value: Any) -> str:
    return "not there" if value is None else encoding.dumps(value)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
