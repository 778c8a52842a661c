"""`orch calibrate`: measure a cluster in a few minutes, and write a cluster file and a profile that predictions rest on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orch.commands import Panel
from orch.commands._options import Json

PANEL = Panel.EXPERIMENT


def command(
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="A cluster's name or the path of its file.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATH=VALUE]...", help="Overrides: cluster.nodes=2.", show_default=False),
    ] = None,
    on: Annotated[
        str, typer.Option(metavar="WHERE", help="How to reach workers: local, processes, HOST:PORT ...")
    ] = "local",
    model: Annotated[str, typer.Option(metavar="MODEL", help="Whose layers are timed.")] = "resnet-digits",
    data: Annotated[str, typer.Option(metavar="DATA", help="What it trains on.")] = "digits8",
    batch: Annotated[int, typer.Option(min=1, help="Samples a worker and step.")] = 32,
    technique: Annotated[
        list[str] | None, typer.Option(metavar="TECHNIQUE", help="Time what it computes itself; may be repeated.")
    ] = None,
    nodes: Annotated[
        str | None, typer.Option(metavar="N,..", help="Worlds to measure; default: 1, 2, 4 ... of its nodes, or ranks.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the files go.")] = Path("clusters"),
    as_json: Json = False,
) -> object:
    """Measure links, compute and techniques of a cluster; write a cluster file, a profile and how good they are."""
    from orch.calibrate import Asked, calibrate
    from orch.calibrate.files import fit_quality, write
    from orch.experiment.show import Terminal

    asked = Asked(cluster, on, model, data, batch, tuple(technique or ()), _counts(nodes), tuple(overrides or ()))
    found = calibrate(asked, Terminal())
    written = write(out, asked, found)
    quality = fit_quality(found)
    if as_json:
        residuals = [
            {"collective": one.collective, "way": one.way, "bytes": one.nbytes, "predicted_s": one.predicted_s,
             "measured_s": one.measured_s, "error": one.error}
            for one in found.residuals
        ]  # fmt: skip
        files = [str(path) for path in written]
        return {"cluster": found.cluster.name, "files": files, "median_error": found.error, "residuals": residuals}
    from orch.commands._output import say

    say(quality)
    for path in written:
        say(f"wrote {path}")
    say(f"next: orch plan RECIPE cluster={written[0]} 'model={{profile: {written[1]}}}'")
    return None


def _counts(text: str | None) -> tuple[int, ...]:
    from orch.errors import OrchError

    parts = [] if text is None else [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise OrchError(f"--nodes {text} is no list of numbers", code="E690", hint="for example --nodes 1,2,4")
    return tuple(int(part) for part in parts)
