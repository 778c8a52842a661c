"""Find what a recipe names: techniques, recipes, clusters. No list to edit, and nothing is imported to be found.

Files are looked for beside the recipe, in the project, in the user's configuration (`~/.config/orch`), then among the
shipped ones; the first place that has the name wins, and two files of one name in one place are an error. A technique
is a module `techniques/<family>/<name with underscores>.py`, an entry point of the group `orch.techniques`, or a module
the project file lists; only `technique(name)` imports it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from orch.errors import OrchError, Position, did_you_mean, quoted
from orch.technique import Technique

PACKAGE = Path(__file__).resolve().parent
SUFFIXES = (".yaml", ".yml")
PROJECT_FILES = ("orch.toml", "pyproject.toml")
ENTRY_POINTS = "orch.techniques"
MOST_BYTES = 1 << 20  # of a project file


class Place(NamedTuple):
    """Where a technique stands: the module to import, the file or package that declares it, and its family."""

    name: str
    module: str
    declared_in: str
    family: str
    root: str | None = None  # a folder that must be importable first
    attribute: str = "technique"


# ---- the project


class Project(NamedTuple):
    """The project a command runs in: its root, and the technique modules its `orch.toml` (or `[tool.orch]`) lists."""

    root: Path
    file: Path | None
    techniques: tuple[str, ...] = ()


def project(start: Path | None = None) -> Project:
    """Return the nearest project at or above `start` (default: the working directory); without one, `start` itself."""
    here = (start or Path.cwd()).absolute()
    for folder in (here, *here.parents):
        for name in PROJECT_FILES:
            table = _project_table(folder / name, _stamp(folder / name))
            if table is not None:
                return Project(folder, folder / name, _listed(table, folder / name))
    return Project(here, None)


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return what changes when a file does, or None when there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=256)
def _project_table(path: Path, stamp: tuple[int, int] | None) -> dict[str, Any] | None:
    if stamp is None or not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError:
        return None
    text = data.decode("utf-8", errors="replace")
    if path.name == "pyproject.toml" and "[tool.orch]" not in text:
        return None
    import tomllib

    where = Position(str(path))
    if len(data) > MOST_BYTES:
        raise OrchError(
            f"is larger than {MOST_BYTES >> 20} MiB", code="E152", where=where, hint="is this the right file?"
        )
    try:
        found: Any = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise OrchError(f"not valid TOML: {reason}", code="E152", where=where) from None
    if path.name != "orch.toml":
        tools = found.get("tool")
        found = tools.get("orch") if isinstance(tools, dict) else None
    return found if isinstance(found, dict) else None


def _is_module(name: object) -> bool:
    return isinstance(name, str) and all(part.isidentifier() for part in name.split("."))


def _listed(table: dict[str, Any], path: Path) -> tuple[str, ...]:
    if unknown := sorted(set(table) - {"techniques"}):
        hint = did_you_mean(unknown[0], ["techniques"]) or "the only key is techniques: a list of modules"
        raise OrchError(f"unknown key '{unknown[0]}'", code="E152", where=Position(str(path)), hint=hint)
    modules = table.get("techniques", [])
    if not isinstance(modules, list) or not all(_is_module(name) for name in modules):
        hint = 'write techniques = ["package.module"]'
        raise OrchError("techniques is not a list of module names", code="E152", where=Position(str(path)), hint=hint)
    return tuple(modules)


# ---- recipes and clusters


def find_file(kind: str, name: str, beside: Sequence[Path] = (), where: Position | None = None) -> Path:
    """Return the file of the recipe or cluster `name`; `kind` is the folder's name, "recipes" or "clusters".

    `beside` are the folders of the recipes that name it. Raises OrchError at `where` if it is nowhere, or twice in one
    place.
    """
    for level in _levels(kind, beside) if _plausible(name) else ():
        found = [
            folder / f"{name}{suffix}"
            for folder in level
            for suffix in SUFFIXES
            if (folder / f"{name}{suffix}").is_file()
        ]
        if len(found) > 1:
            both = " and ".join(str(path) for path in found)
            raise OrchError(
                f"{quoted(name)} is the name of two files: {both}",
                code="E151",
                where=where,
                hint="rename one, or give the path",
            )
        if found:
            return found[0]
    singular = kind.removesuffix("s")
    hint = did_you_mean(name, files(kind, beside)) or f"all: orch list {kind}"
    raise OrchError(f"there is no {singular} named {quoted(name)}", code="E150", where=where, hint=hint)


def exists(path: Path) -> bool:
    """Whether there is anything at `path`; a path that no system can hold is not there."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def expanded(text: str) -> Path:
    """Return a path as typed, with `~` as the home directory where there is one."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def _plausible(name: str) -> bool:
    """Whether `name` can be the name of a file; anything else is not known, rather than an error of the system."""
    return 0 < len(name) < 200 and not set(name) & set("/\\\0")


def files(kind: str, beside: Sequence[Path] = ()) -> dict[str, Path]:
    """Return every recipe or cluster that a name can reach; nearer places hide farther ones."""
    found: dict[str, Path] = {}
    for level in _levels(kind, beside):
        here: dict[str, Path] = {}
        for folder in level:
            here |= {path.stem: path for path in _entries(folder) if path.suffix in SUFFIXES and path.is_file()}
        found = here | found
    return dict(sorted(found.items()))


def _levels(kind: str, beside: Sequence[Path]) -> list[list[Path]]:
    """Return the places of the search order; each is a list of folders that count as one place."""
    levels = [[folder / kind, folder] for folder in beside]
    if kind == "recipes":
        levels = [[folder] for folder in beside]
    levels += [[project().root / kind], [Path.home() / ".config" / "orch" / kind], [shipped(kind)]]
    return [_distinct(level) for level in levels]


def _distinct(folders: Iterable[Path]) -> list[Path]:
    return list({folder.absolute(): folder for folder in folders})


def shipped(kind: str) -> Path:
    """Return the folder of shipped recipes or clusters: inside the package in a wheel, at the top of a clone."""
    inside = PACKAGE / "shipped" / kind
    return inside if inside.is_dir() else PACKAGE.parent / kind


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


# ---- techniques


def techniques() -> dict[str, Place]:
    """Return every known technique by name, sorted; nothing is imported."""
    found: dict[str, Place] = {}
    for place in _places():
        found.setdefault(place.name, place)
    return dict(sorted(found.items()))


def technique(name: str, where: Position | None = None) -> Technique:
    """Import and return the technique `name`. Raises OrchError at `where` if it is unknown, found twice, or broken."""
    places = {(place.module, place.attribute): place for place in _places() if place.name == name}
    if not places:
        near = did_you_mean(name, techniques())
        hint = f"{near} (all: orch list techniques)" if near else "all: orch list techniques"
        raise OrchError(f"technique {quoted(name)} is not known", code="E220", where=where, hint=hint)
    if len(places) > 1:
        both = " and ".join(place.declared_in for place in places.values())
        raise OrchError(
            f"two techniques are named {quoted(name)}: {both}", code="E222", where=where, hint="rename or remove one"
        )
    return _load(next(iter(places.values())), where)


def _load(place: Place, where: Position | None) -> Technique:
    if place.root is not None and place.root not in sys.path:
        sys.path.append(place.root)
    try:
        module = importlib.import_module(place.module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # code of a stranger may do anything on import
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise OrchError(
            f"technique '{place.name}' cannot be imported from {place.declared_in}: {reason}", code="E221", where=where
        ) from error
    value = getattr(module, place.attribute, None)
    if not isinstance(value, Technique):
        hint = f"end the module with {place.attribute} = Technique(...)"
        raise OrchError(
            f"{place.declared_in} has no value '{place.attribute}' that is a Technique",
            code="E221",
            where=where,
            hint=hint,
        )
    if value.name != place.name:
        message = f"{place.declared_in} is found as '{place.name}', but its technique is named '{value.name}'"
        raise OrchError(
            message, code="E221", where=where, hint="name the module, or the entry point, like the technique"
        )
    return value


def _places() -> Iterator[Place]:
    yield from _built_in()
    yield from _entry_points(tuple(sys.path))
    here = project()
    for module in here.techniques:
        yield from _listed_module(module, here)


def _built_in() -> Iterator[Place]:
    for family in _entries(PACKAGE.parent / "techniques"):
        if family.is_dir() and not family.name.startswith(("_", ".")):
            yield from _family(family, family.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _family(folder: Path, stamp: int) -> tuple[Place, ...]:
    """Return the techniques of a folder, which is listed anew when its `stamp` [ns] of modification changes."""
    del stamp
    return tuple(
        Place(
            _name(path),
            f"techniques.{folder.name}.{path.stem}",
            f"techniques/{folder.name}/{path.name}",
            folder.name,
        )
        for path in _technique_files(folder)
    )


def _technique_files(folder: Path) -> list[Path]:
    return [
        p
        for p in _entries(folder)
        if p.suffix == ".py" and not p.name.startswith("_") and not p.stem.endswith("_kernels")
    ]


def _name(path: Path) -> str:
    return path.stem.replace("_", "-")


@lru_cache(maxsize=8)
def _entry_points(path: tuple[str, ...]) -> tuple[Place, ...]:
    """Return the techniques that installed packages offer; `path` is sys.path, which decides what is installed."""
    if not any(_offers_techniques(folder) for folder in path):
        return ()
    from importlib.metadata import entry_points

    places = []
    for point in entry_points(group=ENTRY_POINTS):
        package = point.dist.name if point.dist is not None else point.module
        declared = f"the package {package} ({point.value})"
        places.append(Place(point.name, point.module, declared, package, attribute=point.attr or "technique"))
    return tuple(places)


def _offers_techniques(folder: str) -> bool:
    """Whether a package installed in a folder of sys.path offers a technique.

    `entry_points()` parses the metadata of every installed package, 50 ms among the 140 of a full installation and a
    sixth of what `orch check` may take; reading the few files that could name the group takes 2 ms.
    """
    try:
        installed = [entry.path for entry in os.scandir(folder or ".") if entry.name.endswith(("-info", ".egg"))]
    except OSError:
        return os.path.isfile(folder)  # a zip archive: let the slow way look into it
    files = ("entry_points.txt", "EGG-INFO/entry_points.txt")
    return any(_mentions_group(f"{base}/{file}") for base in installed for file in files)


def _mentions_group(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return ENTRY_POINTS.encode() in file.read()
    except OSError:
        return False


def _listed_module(module: str, here: Project) -> Iterator[Place]:
    """Yield the techniques of a listed module or package, found below the project's root or on Python's path."""
    parts = module.split(".")
    for root in [str(here.root), str(here.root / "src"), *sys.path]:
        base = Path(root or ".").joinpath(*parts)
        importable = root if root in (str(here.root), str(here.root / "src")) else None
        if base.with_suffix(".py").is_file():
            yield Place(_name(base), module, str(base.with_suffix(".py")), parts[0], importable)
            return
        if base.is_dir():
            for path in _technique_files(base):
                yield Place(_name(path), f"{module}.{path.stem}", str(path), parts[-1], importable)
            return
    where = Position(str(here.file))
    raise OrchError(
        f"the listed module '{module}' is not found",
        code="E152",
        where=where,
        hint=f"looked below {here.root} and on Python's path",
    )
