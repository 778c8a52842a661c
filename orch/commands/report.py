"""`orch report`: one HTML file about a run, and every figure with its data and its caption."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orch.commands import Panel
from orch.commands._options import Json, Runs, complete_run

PANEL = Panel.BROWSE
_ID_HELP = "A run: last, its id, or the beginning of its id or of the id's last four characters."


def command(
    run: Annotated[str, typer.Argument(metavar="ID", help=_ID_HELP, autocompletion=complete_run)],
    figure: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this figure, and no page.", show_default=False)
    ] = None,
    formats: Annotated[str, typer.Option("--format", metavar="LIST", help="Formats of figures.")] = "pdf,png,csv",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to write; by default a folder in the run.", show_default=False),
    ] = None,
    runs: Runs = None,
    as_json: Json = False,
) -> object:
    """Write a report of a run: one HTML file that needs no network, and every figure as PDF, PNG and CSV."""
    from orch.commands._output import say
    from orch.report import data, stored
    from orch.report.page import answer
    from orch.report.write import write
    from orch.track import settings

    root = settings.runs_root(runs)
    found = stored.open_run(root, run)
    about = data.subject(root, found)
    folder = out if out is not None else found.directory.path / "report"
    written = write(about, folder, figure, [kind for kind in formats.replace(" ", "").split(",") if kind])
    text, also = answer(about)
    if as_json:
        return {"run": found.id, "page": written.page, "files": written.files, "absent": written.absent, "answer": text}
    for line in (f"{text}.", *(f"{one}." for one in also)):
        say(line)
    for name, reason in written.absent.items():
        say(f"no figure {name}: {reason}")
    say(f"\n{written.page}" if written.page is not None else "")
    for path in written.files:
        say(f"  {path}")
    return None
