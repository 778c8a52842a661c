"""What `orch list` lists: the entries of each kind, as plain data."""

from __future__ import annotations

import itertools
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
    from orch.models import catalogue, datasets

    return sorted(catalogue.names() if kind == "models" else datasets.DATA)


def _techniques() -> list[Entry]:
    return [
        {**_facts.technique_facts(place), "about": _facts.without_name(_facts.first_sentence(_facts.prose(place)))}
        for _, place in sorted(registry.techniques().items())
    ]


def _recipes() -> list[Entry]:
    return [{"name": name, "about": about(path), "file": str(path)} for name, path in registry.files("recipes").items()]


def _clusters() -> list[Entry]:
    found: list[Entry] = []
    for name, path in registry.files("clusters").items():
        workers: object = None
        try:
            described = _facts.cluster(name)
            workers, remark = described.world_size, described.about or about(path)
        except OrchError as error:
            remark = f"cannot be read: {error}"
        found.append({"name": name, "workers": workers, "about": remark, "file": str(path)})
    return found


def _models() -> list[Entry]:
    from orch.models import catalogue

    found = sorted(catalogue.models(), key=lambda model: model.name)
    return [
        {
            "name": model.name,
            "family": model.family,
            "parameters": model.parameters,
            "runs": model.runs,
            "about": model.summary,
            "source": model.source,
            "knobs": [knob.as_json() for knob in _facts.knobs(model.knobs)],
        }
        for model in found
    ]


def _data() -> list[Entry]:
    from orch.models.datasets import DATA

    return [
        {
            "name": name,
            "family": data.family,
            "about": data.summary,
            "source": data.source,
            "knobs": [knob.as_json() for knob in _facts.knobs(data.knobs)],
        }
        for name, data in sorted(DATA.items())
    ]


_KINDS: dict[str, Callable[[], list[Entry]]] = {
    "techniques": _techniques,
    "models": _models,
    "clusters": _clusters,
    "recipes": _recipes,
    "data": _data,
}


def about(path: Path) -> str:
    """Return the first sentence of the comment that a YAML file begins with: what it says about itself."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    comment = itertools.takewhile(lambda line: line.startswith("#"), (line for line in lines if line.strip()))
    return _facts.first_sentence(" ".join(line.lstrip("#").strip() for line in comment))
