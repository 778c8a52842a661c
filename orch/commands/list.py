"""`orch list`: what there is, by kind; `orch show NAME` tells about one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated

import typer

from orch.commands import Panel
from orch.commands._options import Json

PANEL = Panel.BROWSE


class Kind(StrEnum):
    """What can be listed."""

    TECHNIQUES = "techniques"
    MODELS = "models"
    CLUSTERS = "clusters"
    RECIPES = "recipes"
    DATA = "data"


def command(
    kind: Annotated[Kind | None, typer.Argument(help="One kind; by default all.", show_default=False)] = None,
    as_json: Json = False,
) -> object:
    """List techniques, models, clusters, recipes or data sets, one line each."""
    from orch.commands import _catalogue
    from orch.commands._output import say, table

    chosen = list(Kind) if kind is None else [kind]
    found = {one.value: _catalogue.entries(one.value) for one in chosen}
    if as_json:
        return found if kind is None else found[kind.value]
    for name, entries in found.items():
        if kind is None:
            say(f"{name}:")
        headers, row = _ROWS[name]
        say(table(headers, [row(entry) for entry in entries]) if entries else "  none")
        if kind is None:
            say()
    return None


Row = Callable[[Mapping[str, object]], list[object]]
_ROWS: dict[str, tuple[list[str], Row]] = {
    "techniques": (
        ["name", "family", "slot", "exact", "about"],
        lambda e: [e["name"], e["family"], e["slot"], "exact" if e["lossless"] else "lossy", e["about"]],
    ),
    "models": (
        ["name", "parameters", "runs", "about"],
        lambda e: [e["name"], f"{e['parameters']:,}", "yes" if e["runs"] else "plan only", e["about"]],
    ),
    "clusters": (["name", "workers", "about"], lambda e: [e["name"], e["workers"], e["about"]]),
    "recipes": (["name", "about"], lambda e: [e["name"], e["about"]]),
    "data": (["name", "about"], lambda e: [e["name"], e["about"]]),
}
