"""`orch run`: really run every stack of a recipe and compare them, each figure beside its prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from orch.commands import Panel
from orch.commands._options import Json, Overrides, RecipeName

PANEL = Panel.EXPERIMENT


def command(
    recipe: RecipeName,
    overrides: Overrides = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE", help="How to reach workers: local, emulate, torchrun, HOST:PORT or ray://HOST:PORT."
        ),
    ] = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="Only simulate, and keep the figures as a run.")] = False,
    runs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where runs are kept; default: $ORCH_RUNS, else ./runs.")
    ] = None,
    no_track: Annotated[bool, typer.Option("--no-track", help="Leave no run directory and no index entry.")] = False,
    as_json: Json = False,
) -> object:
    """Run every stack in one gang, in shuffled blocks; compare them with the baseline and with their predictions."""
    from orch.experiment.invoke import Invocation, invoke
    from orch.experiment.show import Terminal

    invocation = Invocation(recipe, tuple(overrides or ()), on=on, simulate=simulate, runs=runs, track=not no_track)
    document = invoke(invocation, Terminal())
    if document is None:
        return None  # a rank of torchrun other than the first: rank 0 speaks for all
    if not as_json:
        _say(document, recipe)
    _draw(document)
    return document if as_json else None


def _say(document: dict[str, Any], recipe: str) -> None:
    from orch.commands._output import say, table
    from orch.experiment.tables import footnotes, next_steps, table_of

    say(table(*table_of(document)))
    for line in (*footnotes(document), *next_steps(document, recipe)):
        say(line)


def _draw(document: dict[str, Any]) -> None:
    """Draw the run's figures, after the results are shown: nobody waits for them, and a run does not fail by them."""
    import sys
    from contextlib import suppress

    from orch.report.pictures import draw

    sys.stdout.flush()
    if document["run_dir"] is not None:
        with suppress(OSError, ValueError):
            draw(Path(document["run_dir"]) / "figures", f"{document['experiment']}, {document['workers']} workers")
