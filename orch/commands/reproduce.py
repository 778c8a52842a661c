"""`orch reproduce`: run a paper's experiments again, and say what became of its claims."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orch.commands import Panel
from orch.commands._options import Json

if TYPE_CHECKING:
    from orch.reproduce.document import DefectResult, PaperResult
    from orch.reproduce.paper import Paper

PANEL = Panel.EXPERIMENT


def complete_paper(incomplete: str) -> Iterable[str]:
    """Return the papers whose names begin with `incomplete`."""
    from orch.reproduce.paper import papers

    return [name for name in papers() if name.startswith(incomplete)]


def command(
    paper: Annotated[
        str | None,
        typer.Argument(
            metavar="[PAPER]",
            help="A paper's name or the path of its file; without one, every paper and its standing.",
            autocompletion=complete_paper,
            show_default=False,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every paper.")] = False,
    explain: Annotated[
        str | None, typer.Option(metavar="CLAIM", help="Show the lineage of every input of one claim.")
    ] = None,
    plan_costs: Annotated[
        str | None,
        typer.Option(metavar="paper|cluster", help="What planners know: the paper's own constants, or the real costs."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one self-contained page: every claim with its lineage.")
    ] = None,
    badges: Annotated[
        bool, typer.Option("--badges", help="Print the standing of the papers as a Markdown table, and nothing else.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep a run a paper, with an index entry a claim.")] = False,
    runs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep them here; default with --keep: $ORCH_RUNS, else ./runs.")
    ] = None,
    as_json: Json = False,
) -> object:
    """Run a paper's experiments again in simulation, and judge its claims. Starts no worker."""
    from orch.reproduce.document import document, reproduce_all
    from orch.reproduce.paper import find, load, papers

    kept = html is not None or keep or runs is not None or badges
    _check(paper, every, explain, plan_costs, kept=kept)
    if explain is not None and paper is not None:
        return _explain(load(find(paper)), explain, plan_costs, as_json)
    paths = [find(paper)] if paper is not None else list(papers().values())
    loaded = [load(path) for path in paths]
    if paper is None and not every:
        return _standing(loaded, as_json)
    results = reproduce_all(loaded, plan_costs)
    if badges and not as_json:
        _say_badges(results)
    elif not as_json:
        _say(results)
    places = _kept(results, html, runs, asked=keep or runs is not None)
    return document(results) | places if as_json else None


def _check(paper: str | None, every: bool, explain: str | None, plan_costs: str | None, *, kept: bool) -> None:
    """Refuse options that do not go together."""
    from orch.errors import OrchError, did_you_mean

    message = hint = ""
    if plan_costs not in (None, "paper", "cluster"):
        message = f"--plan-costs {plan_costs}: is no choice"
        hint = did_you_mean(str(plan_costs), ("paper", "cluster")) or "paper or cluster"
    elif paper is not None and every:
        message, hint = "a paper and --all say different things", "give one of them"
    elif kept and (explain is not None or (paper is None and not every)):
        what = "--explain" if explain is not None else "the list of papers"
        message, hint = f"{what} is no result to write or keep", "give a paper or --all, without --explain"
    elif explain is not None and paper is None:
        message, hint = "--explain needs the paper of the claim", "orch reproduce PAPER --explain CLAIM"
    if message:
        raise OrchError(message, code="E001", hint=hint)


def _say_badges(results: list[PaperResult]) -> None:
    from orch.commands._output import say
    from orch.reproduce.badges import badges

    say(badges(results))


def _kept(results: list[PaperResult], html: Path | None, runs: Path | None, *, asked: bool) -> dict[str, object]:
    """Write what was asked for, and say where it is."""
    from orch import __version__
    from orch.commands._output import note

    kept: dict[str, object] = {}
    if html is not None:
        from orch.reproduce.page import page

        html.write_text(page(results, __version__), encoding="utf-8")
        kept["html"] = str(html)
    if asked:
        from orch.reproduce.keep import keep

        kept["run_dirs"] = {result.paper.name: str(keep(result, runs, __version__)) for result in results}
    for what, where in kept.items():
        for place in where.values() if isinstance(where, dict) else (where,):
            note(f"{'page' if what == 'html' else 'run'}: {place}")
    return kept


def _standing(loaded: list[Paper], as_json: bool) -> object:
    from orch.commands._output import say, table
    from orch.reproduce.document import standing

    rows = standing(loaded)
    if as_json:
        return {"papers": rows}
    say(
        table(
            ["paper", "claims", "can be run", "not runnable here", "not yet judged", "title"],
            [list(r.values()) for r in rows],
        )
    )
    say("\norch reproduce PAPER runs one; orch reproduce --all runs every one")
    return None


def _say(results: list[PaperResult]) -> None:
    from orch.commands._output import say, table
    from orch.reproduce.document import HEADERS, summary, table_rows
    from orch.units import format_seconds

    for result in results:
        spec = result.paper.spec
        say(f"{spec.paper}: {spec.title} ({spec.venue})\n")
        say(table(HEADERS, table_rows(result.claims)))
        if result.checks:
            say("\nour checks: derivations of ours, which the paper did not publish")
            say(table(HEADERS, table_rows(result.checks)))
        for found in result.defects:
            say(f"\n{found.defect.id}: {found.defect.says}")
            about = result.paper.spec.experiments[found.defect.experiment].says
            say(
                f"  {found.defect.published} {format_seconds(found.published_s)}, mended ({found.defect.mended}) "
                f"{format_seconds(found.mended_s)}{_other_than_stated(found)}: {about}"
            )
        for name, prediction in result.predictions.items():
            say(f"\ntable {name}: {prediction}")
        say()
        for line in summary(result.claims):
            say(line)
        say()
    if len(results) > 1:
        say("all papers")
        for line in summary([claim for result in results for claim in result.claims]):
            say(line)


def _other_than_stated(found: DefectResult) -> str:
    """Say so where a counter-example does not show what its file states of it."""
    off = abs(found.worse / found.defect.worse - 1.0) > 0.05
    return f" ({found.worse:.3g} times as slow; {found.defect.worse:g} is stated)" if off else ""


def _explain(paper: Paper, claim: str, plan_costs: str | None, as_json: bool) -> object:
    from orch.commands._output import say
    from orch.reproduce.explain import lineage, lines

    found = lineage(paper, claim, plan_costs)
    if as_json:
        return found
    for line in lines(found):
        say(line)
    return None
