"""`orch down`: end the emulated clusters that `orch up` keeps."""

from __future__ import annotations

from typing import Annotated

import typer

from orch.commands import Panel
from orch.commands._options import Json

PANEL = Panel.EXPERIMENT


def command(
    cluster: Annotated[
        str | None, typer.Argument(metavar="[CLUSTER]", help="The one to end; all where none is named.")
    ] = None,
    as_json: Json = False,
) -> object:
    """End the emulated clusters that `orch up` keeps, and remove all that they are made of."""
    from orch.commands._output import say
    from orch.experiment.emulated import down

    ended = down(cluster)
    if as_json:
        return {"ended": ended}
    for one in ended:
        say(f"{one} is down")
    if not ended:
        say("no emulated cluster is up")
    return None
