"""`orch doctor`: what this machine can do, what each lack costs, and how to mend it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orch.commands import Panel
from orch.commands._options import Json, Runs

if TYPE_CHECKING:
    from pathlib import Path

    from orch.doctor import Report

PANEL = Panel.BROWSE
_WIDEST = 10


def command(
    clean: Annotated[bool, typer.Option("--clean", help="Remove what killed runs left on this machine.")] = False,
    runs: Runs = None,
    as_json: Json = False,
) -> object:
    """Say which ways to reach workers work on this machine, and what each lack costs. Starts no worker."""
    from orch.track import settings

    root = settings.runs_root(runs)
    if clean:
        return _clean(root, as_json)
    from orch.commands._output import note, say
    from orch.doctor import examine, leftovers

    report, left = examine(root), leftovers(root)
    if as_json:
        return {
            "machine": report.machine,
            "ways": {way.name: {"works": way.works, "about": way.about, "fix": way.fix} for way in report.ways},
            "findings": report.findings,
            "leftovers": [str(one) for one in left],
        }
    say(_text(report))
    if left:
        note(f"\nkilled runs left {len(left)} thing{'s' * (len(left) > 1)} behind: orch doctor --clean removes them")
    return None


def _text(report: Report) -> str:
    lines = [report.machine, "", "ways to reach workers (--on)"]
    for way in report.ways:
        why = way.about if way.works else "; ".join(part for part in (way.about, way.fix) if part)
        lines.append(f"  {'yes' if way.works else 'no ':<4}  {way.name:<{_WIDEST}}  {why}")
    lines += ["", "this machine"]
    lines += [f"  {one.state:<4}  {one.name:<{_WIDEST}}  {one.text()}" for one in report.findings]
    return "\n".join(lines)


def _clean(root: Path, as_json: bool) -> object:
    from orch.commands._output import say
    from orch.doctor import leftovers, remove
    from orch.errors import OrchError

    found = leftovers(root)
    resisted = remove(found)
    if resisted:
        one, why = resisted[0]
        more = f" (and {len(resisted) - 1} more)" if len(resisted) > 1 else ""
        hint = "it may belong to another user: run as its owner, or as root"
        raise OrchError(f"cannot remove {one}: {why}{more}", code="E020", hint=hint)
    if as_json:
        return {"removed": [str(one) for one in found]}
    for one in found:
        say(f"removed {one}")
    if not found:
        say("nothing was left behind")
    return None
