"""`orch up`: keep an emulated cluster, so that runs on it need not make one."""

from __future__ import annotations

from typing import Annotated

import typer

from orch.commands import Panel
from orch.commands._options import Json

PANEL = Panel.EXPERIMENT


def command(
    cluster: Annotated[
        str, typer.Argument(metavar="CLUSTER", help="A cluster's name (orch list clusters) or the path of a YAML file.")
    ],
    as_json: Json = False,
) -> object:
    """Start an emulated cluster and keep it; `orch run --on emulate` with that cluster uses it until `orch down`."""
    from orch.commands._output import say
    from orch.experiment.emulated import up
    from orch.units import format_count

    found = up(cluster)
    if as_json:
        return found
    nodes = format_count(found["nodes"], "node")
    say(f"{found['cluster']} is up: {nodes} ready in {found['took_s']:.1f} s, as {found['name']}")
    return None
