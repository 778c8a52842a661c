"""`orch sweep`: search over settings of a recipe, in simulation or with real trials."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from orch.commands import Panel
from orch.commands._options import Json, Overrides, RecipeName

PANEL = Panel.EXPERIMENT


class Only(StrEnum):
    """Which trials to run."""

    FAILED = "failed"
    MISSING = "missing"


class Changed(StrEnum):
    """What to do with a study that was begun with other code or machines."""

    KEEP = "keep"
    REDO = "redo"
    DIFF = "diff"


def command(
    recipe: RecipeName,
    overrides: Overrides = None,
    trials: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Trials of the whole study, over all its invocations.")
    ] = None,
    parallel: Annotated[int | None, typer.Option(min=1, metavar="K", help="Trials at the same time.")] = None,
    on: Annotated[
        str | None,
        typer.Option(metavar="WHERE", help="How to reach workers: local, processes, HOST:PORT or ray://HOST:PORT."),
    ] = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="Only simulate: hundreds of trials a second.")] = False,
    only: Annotated[
        Only | None, typer.Option(help="failed: run those again; missing: only finish what was begun.")
    ] = None,
    changed: Annotated[
        Changed | None, typer.Option(help="With other code or machines than the study was begun with.")
    ] = None,
    runs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where runs are kept; default: $ORCH_RUNS, else ./runs.")
    ] = None,
    no_track: Annotated[bool, typer.Option("--no-track", help="Leave no run directory and no index entry.")] = False,
    as_json: Json = False,
) -> object:
    """Search over settings: the same line again goes on where a study stopped, and runs nothing twice."""
    from orch.experiment.show import Terminal
    from orch.sweep.doing import Asked
    from orch.sweep.invoke import sweep

    asked = Asked(
        recipe, tuple(overrides or ()), on=on, simulate=simulate, trials=trials, parallel=parallel,
        only=None if only is None else only.value, changed=None if changed is None else changed.value, runs=runs,
        track=not no_track,
    )  # fmt: skip
    document = sweep(asked, Terminal())
    if not as_json:
        _say(document)
    _draw(document)
    return document if as_json else None


def _say(document: dict[str, Any]) -> None:
    from orch.commands._output import say, table
    from orch.sweep.results import lines_of, table_of

    headers, rows = table_of(document)
    if rows:
        say(table(headers, rows))
    for line in lines_of(document):
        say(line)


def _draw(document: dict[str, Any]) -> None:
    """Draw the figures after the results are shown: nobody waits for them, and a sweep does not fail by them."""
    import sys
    from contextlib import suppress

    from orch.sweep.figures import draw

    sys.stdout.flush()
    if document["run_dir"] is not None:
        with suppress(OSError, ValueError):
            draw(Path(document["run_dir"]) / "figures", document["study"])
