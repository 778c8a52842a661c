"""`orch runs`: list runs, look into one, read its logs; stop, remove and mend."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from orch.commands import Panel
from orch.commands._options import Json, Runs, complete_run
from orch.errors import OrchError, did_you_mean

if TYPE_CHECKING:
    from typer._click import Command, Context

    from orch.track.query import Best, Summary

PANEL = Panel.BROWSE
SHOWN = 20
_ONE = "show"


_ID_HELP = "A run: last, its id, or the beginning of its id or of the id's last four characters."
Id = Annotated[str, typer.Argument(metavar="ID", help=_ID_HELP, autocompletion=complete_run)]
Ids = Annotated[list[str], typer.Argument(metavar="ID", help=_ID_HELP, autocompletion=complete_run)]


class _IdOrCommand(TyperGroup):
    """Takes a word that names no command as the id of a run."""

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            words = [word for word in args if not word.startswith("-")]
            if len(words) > 1 and (meant := did_you_mean(args[0], set(self.commands) - {_ONE})):
                raise OrchError(f"orch runs has no command {args[0]!r}", code="E001", hint=meant)
            args = [_ONE, *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_IdOrCommand,
    help="List runs, look into one (orch runs ID), read its logs; stop, remove and mend.",
    invoke_without_command=True,
    subcommand_metavar="[ID | COMMAND ...]",
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def listed(
    context: typer.Context,
    runs: Runs = None,
    everything: Annotated[bool, typer.Option("--all", help=f"Show all runs, not the {SHOWN} newest.")] = False,
    as_json: Json = False,
) -> object:
    """List runs, look into one (orch runs ID), read its logs; stop, remove and mend."""
    context.obj = (runs, as_json)
    if context.invoked_subcommand is not None:
        return None
    from orch.commands._output import note, say, table
    from orch.track import directory, query, settings, upkeep

    root = settings.runs_root(runs)
    upkeep.settle_all(root, settings.store_of(root), note)
    found = [query.summary(run) for run in directory.find_all(root)]
    found.reverse()
    if as_json:
        return [one.document() for one in found]
    if not found:
        say(f"no runs under {root}; `orch run RECIPE` makes one")
        return None
    some = found if everything else found[:SHOWN]
    say(table(["id", "recipe", "state", "mode", "when", "took", "stacks", "best gain"], [_row(one) for one in some]))
    if len(some) < len(found):
        say(f"... and {len(found) - len(some)} older (--all)")
    return None


@app.command(_ONE, hidden=True)
def show(context: typer.Context, run: Id, runs: Runs = None, as_json: Json = False) -> object:
    """Look into one run: how it stands, what it found, where its files are."""
    from orch.commands._output import note, say
    from orch.track import encoding, query, settings, upkeep

    root, as_json = _root(context, runs), as_json or _json(context)
    upkeep.settle_all(root, settings.store_of(root), note)
    found = query.summary(query.find(root, run))
    if as_json:
        environment = encoding.read_json(found.run.path / "environment.json")
        return found.document() | {"results": found.run.results, "environment": environment}
    for name, value in _facts(found):
        say(f"{name:<8} {value}")
    for line in _result_lines(found.run.results):
        say(line)
    say(f"\nfiles in {found.run.path}:")
    for path in sorted(found.run.path.rglob("*")):
        if path.is_file():
            say(f"  {path.relative_to(found.run.path)}")
    return None


@app.command()
def stop(
    context: typer.Context,
    run: Id,
    force: Annotated[bool, typer.Option("--force", help="Kill the driver if it does not stop in time.")] = False,
    timeout: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="How long to wait.")] = 30.0,
    runs: Runs = None,
    as_json: Json = False,
) -> object:
    """Ask a run to stop, wait for it, and say how it ended."""
    from orch.commands._output import say
    from orch.track import query, upkeep

    found = query.find(_root(context, runs), run)
    was_open = (before := found.state) is not None and before.is_open
    after = upkeep.stop(found, timeout, force=force)
    if as_json or _json(context):
        return query.summary(found).document()
    say(f"{found.id}: {after.status}" if was_open else f"{found.id} was over already: {after.status}")
    return None


@app.command()
def logs(
    context: typer.Context,
    run: Id,
    rank: Annotated[int | None, typer.Option(min=0, help="Only this rank.", show_default=False)] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", min=0, help="Only the last so many of each.", show_default=False)
    ] = None,
    runs: Runs = None,
    as_json: Json = False,
) -> object:
    """Print the logs of a run: the driver's and each rank's."""
    import sys

    from orch.commands._output import say
    from orch.track import query

    as_json = as_json or _json(context)
    if follow and (as_json or lines is not None):
        raise OrchError("--follow goes with neither --json nor --lines", code="E809", hint="leave one of them out")
    found = query.find(_root(context, runs), run)
    paths = query.logs(found, rank)
    if as_json:
        texts = {path.stem: query.read_log(path, lines).splitlines() for path in paths}
        return {"id": found.id, "run_dir": str(found.path), "logs": texts}
    shown: Path | None = None
    pieces = query.follow(found, paths) if follow else ((path, query.read_log(path, lines)) for path in paths)
    for path, text in pieces:
        if path != shown and len(paths) > 1:
            say(f"==> {path.name} <==")
        shown = path
        sys.stdout.write(text if text.endswith("\n") or not text else text + "\n")
        sys.stdout.flush()
    return None


@app.command()
def rm(
    context: typer.Context,
    ids: Ids,
    force: Annotated[bool, typer.Option("--force", help="Stop a run that is not over, then remove it.")] = False,
    runs: Runs = None,
    as_json: Json = False,
) -> object:
    """Remove runs, with their entries in the index."""
    from orch.commands._output import note, say
    from orch.track import query, settings, upkeep

    root = _root(context, runs)
    # All are found before the first is removed: a typo removes nothing.
    found = list({one.path: one for one in (query.find(root, name) for name in ids)}.values())
    upkeep.remove(found, settings.store_of(root), note, force=force)
    if as_json or _json(context):
        return {"removed": [one.id for one in found]}
    for one in found:
        say(f"removed {one.id}")
    return None


@app.command()
def fix(context: typer.Context, runs: Runs = None, as_json: Json = False) -> object:
    """Write the true end of runs whose driver died, and make the index anew from the directories."""
    from orch.commands._output import note, say
    from orch.track import indexer, settings, upkeep

    root = _root(context, runs)
    done = upkeep.fix(root, settings.store_of(root))
    if done.error is not None and indexer.available():
        hint = "the directories are complete; mend the store, or name another with MLFLOW_TRACKING_URI"
        raise OrchError(f"the index {done.index} cannot be used: {done.error}", code="E810", hint=hint)
    if as_json or _json(context):
        return done
    for name in done.closed:
        say(f"closed {name}: its driver is gone")
    if done.set_aside is not None:
        say(f"set {done.set_aside} aside: it was ruined, or made in another place")
    if done.error is not None:
        note(f"no index: {done.error}")
    else:
        say(f"index {done.index}: {done.synced} runs, {done.removed} removed")
    return None


def _root(context: typer.Context, runs: Path | None) -> Path:
    from orch.track import settings

    return settings.runs_root(runs or context.obj[0])


def _json(context: typer.Context) -> bool:
    return bool(context.obj[1])


def _row(one: Summary) -> list[object]:
    stacks = ", ".join(one.stacks)
    return [
        one.run.id,
        _short(one.recipe, 24),
        one.status,
        one.mode,
        _when(one.state.created_s if one.state else None),
        _took(one.duration_s),
        _short(stacks, 40),
        _gain(one.best),
    ]


def _facts(found: Summary) -> list[tuple[str, str]]:
    now = found.state
    where = "" if now is None else f"pid {now.owner.pid} on {now.owner.host}"
    reason = f": {now.reason}" if now is not None and now.reason else ""
    took = _took(found.duration_s)
    lines = [
        ("run", found.run.id),
        ("recipe", found.recipe),
        ("state", f"{found.status}{reason}"),
        ("mode", found.mode),
        ("when", _when(None if now is None else now.created_s) + (f", took {took}" if took else "")),
        ("driver", where),
        ("best", _gain(found.best)),
        ("mlflow", found.parent_run_id or ""),
    ]
    return [(name, " ".join(value.splitlines())) for name, value in lines if value]


def _result_lines(results: Mapping[str, Any]) -> list[str]:
    """Return the table that the run ended with, or nothing where it has none that this version can read."""
    from orch.commands._output import table
    from orch.experiment.tables import faults_of, footnotes, table_of

    try:
        if not results.get("stacks"):
            return []
        faults = table(*faults_of(results["faults"])).splitlines() if results.get("faults") else []
        return ["", *table(*table_of(results)).splitlines(), *([""] if faults else []), *faults, *footnotes(results)]
    except (KeyError, TypeError, ValueError):
        return ["", "the results are not in a form that this version of orch can show; results.json has them"]


def _gain(best: Best | None) -> str:
    if best is None:
        return ""
    band = "" if best.lo is None or best.hi is None else f" [{best.lo:.2f}, {best.hi:.2f}]"
    return f"{best.speedup:.2f}x{band} {_short(best.stack, 24)}"


def _when(seconds: float | None) -> str:
    import time

    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _took(seconds: float | None) -> str:
    if seconds is None:
        return ""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f}s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}h{rest // 60:02d}m" if hours else f"{rest // 60}m{rest % 60:02d}s"


def _short(text: str, width: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"
