"""`orch advise`: which stack is worth trying, of all that are compatible; simulated, and confirmed when asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orch.commands import Panel
from orch.commands._options import Json, Overrides, RecipeName, Runs

if TYPE_CHECKING:
    from orch.advise.advise import Advice
    from orch.advise.measure import Confirmation

PANEL = Panel.EXPERIMENT


def command(
    recipe: RecipeName,
    overrides: Overrides = None,
    measure: Annotated[
        int | None, typer.Option(metavar="K", min=1, help="Run the first K for real and compare.", show_default=False)
    ] = None,
    on: Annotated[
        str | None, typer.Option(metavar="WHERE", help="With --measure: how to reach workers.", show_default=False)
    ] = None,
    runs: Runs = None,
    as_json: Json = False,
) -> object:
    """Search all compatible stacks and their knobs in simulation; rank them, each gain beside the error of its prediction."""
    from orch.advise.advise import advise
    from orch.advise.measure import confirm
    from orch.advise.tables import document
    from orch.experiment.show import Terminal
    from orch.recipe import load
    from orch.track import settings

    found = advise(load(recipe, overrides or []), settings.runs_root(runs))
    if not as_json:
        _say(found, recipe, measure)
    confirmation = None
    if measure is not None:
        confirmation = confirm(found, recipe, overrides or [], measure, on, runs, Terminal())
        if confirmation is None:
            return None  # a rank of torchrun other than the first: rank 0 speaks for all
        if not as_json:
            _say_confirmed(confirmation)
    return document(found, confirmation) if as_json else None


def _say(found: Advice, recipe: str, measure: int | None) -> None:
    from orch.advise import tables
    from orch.commands._output import say, table

    for line in tables.headline(found):
        say(line)
    say("")
    say(table(*tables.rows(found)))
    say(f"\n{tables.NOTES}")
    say(tables.basis(found))
    if found.elsewhere:
        say("")
        say(table(*tables.elsewhere(found)))
    if measure is None:
        say(f"\nnext: orch advise {recipe} --measure 3 (runs the first three beside {found.baseline.name})")


def _say_confirmed(found: Confirmation) -> None:
    from orch.advise import tables
    from orch.commands._output import say, table

    say("")
    say(table(*tables.confirmed(found)))
    if found.run_dir is not None:
        say(f"\nrun: {found.run_dir}")
