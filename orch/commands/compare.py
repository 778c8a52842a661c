"""`orch compare`: how much faster one stack is than another, beyond noise, and where the time went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orch.commands import Panel
from orch.commands._options import Json, Runs, complete_run

if TYPE_CHECKING:
    from orch.report.compare import Comparison

PANEL = Panel.BROWSE
_HELP = (
    "A run (last, an id, or the beginning of one) or one of its stacks, RUN:STACK. What comes first is the reference."
)


def command(
    chosen: Annotated[list[str], typer.Argument(metavar="RUN[:STACK]...", help=_HELP, autocompletion=complete_run)],
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Compare runs of different models, clusters, batches or modes too.")
    ] = False,
    runs: Runs = None,
    as_json: Json = False,
) -> object:
    """Compare stacks and runs, paired per block where they share them, with a waterfall of where the time went."""
    from orch.report import compare, stored
    from orch.track import settings

    found = compare.comparison(stored.chosen(settings.runs_root(runs), chosen), anyway=anyway)
    if as_json:
        return compare.document(found)
    _say(found)
    return None


def _say(found: Comparison) -> None:
    from orch.commands._output import say, table
    from orch.report.tables import header, rows, waterfall

    for line in header(found):
        say(line)
    say("")
    say(table(*rows(found)))
    for pair in found.pairs:
        for line in waterfall(pair):
            say(line)
    for note in (*found.differences, *found.notes):
        say(f"\n{note}")
