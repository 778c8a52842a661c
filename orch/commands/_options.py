"""Arguments that several commands share, so that they are spelled, described and completed in one way."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output and nothing else.")]
Runs = Annotated[
    Path | None,
    typer.Option("--runs", metavar="DIR", help="Where runs are; by default $ORCH_RUNS, or ./runs.", show_default=False),
]


def complete_recipe(incomplete: str) -> list[str]:
    """Return shipped and local recipe names, and recipe files, that begin with `incomplete`."""
    from orch import registry

    return _beginning(incomplete, registry.files("recipes"))


def complete_technique(incomplete: str) -> list[str]:
    """Return the technique names that begin with `incomplete`; imports none of them."""
    from orch import registry

    return _beginning(incomplete, registry.techniques())


def complete_run(incomplete: str) -> list[str]:
    """Return `last` and the ids of runs that begin with `incomplete`, the newest first."""
    from orch.track import directory, settings

    ids = [run.id for run in directory.find_all(settings.runs_root())]
    return [name for name in ("last", *reversed(ids)) if name.startswith(incomplete)]


_RECIPE = typer.Argument(
    metavar="RECIPE",
    help="A recipe's name (orch list recipes) or the path of a YAML file.",
    autocompletion=complete_recipe,
    show_default=False,
)
RecipeName = Annotated[str, _RECIPE]
OptionalRecipeName = Annotated[str | None, _RECIPE]
TechniqueName = Annotated[
    str,
    typer.Argument(
        metavar="TECHNIQUE", help="A technique's name (orch list techniques).", autocompletion=complete_technique
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PATH=VALUE]...",
        help="Overrides, the value read as YAML: measure.blocks=4 cluster.nodes=8.",
        show_default=False,
    ),
]


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
