"""What `orch list` lists: the entries of each kind, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from orch import registry
from orch.commands import _facts
from orch.errors import OrchError

Entry = Mapping[str, object]


def entries(kind: str) -> list[Entry]:
    """Return the entries of a kind, sorted by name. A file that cannot be read is listed with the reason."""
    return _KINDS[kind]()


def names(kind: str) -> list[str]:
    """Return the names of a kind; cheaper than its entries."""
    if kind == "techniques":
        return list(registry.techniques())
    if kind in ("recipes", "clusters"):
        return list(registry.files(kind))
    return [str(entry["name"]) for entry in entries(kind)]


def _techniques() -> list[Entry]:
    return [
        {**_facts.technique_facts(place), "about": _facts.first_sentence(_facts.prose(place))}
        for _, place in sorted(registry.techniques().items())
    ]


def _recipes() -> list[Entry]:
    return [{"name": name, "about": about(path), "file": str(path)} for name, path in registry.files("recipes").items()]


def _clusters() -> list[Entry]:
    found: list[Entry] = []
    for name, path in registry.files("clusters").items():
        workers: object = None
        try:
            workers = _facts.cluster(name).world_size
            remark = about(path)
        except OrchError as error:
            remark = f"cannot be read: {error}"
        found.append({"name": name, "workers": workers, "about": remark, "file": str(path)})
    return found


_KINDS: dict[str, Callable[[], list[Entry]]] = {
    "techniques": _techniques,
    "models": list,
    "clusters": _clusters,
    "recipes": _recipes,
    "data": list,
}


def about(path: Path) -> str:
    """Return the first comment of a YAML file: what it says about itself."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    comment = next((line for line in lines if line.strip()), "")
    return comment.lstrip("# ").rstrip() if comment.startswith("#") else ""
