"""The standing of papers as a Markdown table, for a README: generated, so that it cannot say more than the verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from orch.reproduce.document import PaperResult, outcomes
from orch.reproduce.verdict import Outcome

BEGIN = "<!-- claims: orch reproduce --all --badges -->"
END = "<!-- /claims -->"
_HEAD = "| paper | claims | judged (simulated) | outcome |\n|---|---|---|---|"


def badges(results: Sequence[PaperResult]) -> str:
    """Return the table: a row a paper of which something could be judged, and a line for the others."""
    rows = [_row(result) for result in results if result.judged]
    rest = [result for result in results if not result.judged]
    table = "\n".join([_HEAD, *rows])
    if not rest:
        return table
    claims = sum(len(result.claims) for result in rest)
    papers = "1 more paper" if len(rest) == 1 else f"{len(rest)} more papers"
    return (
        f"{table}\n\n{papers} with {claims} claims are kept as data, none of them judged: `orch reproduce` lists them."
    )


def _row(result: PaperResult) -> str:
    counts = outcomes([claim for claim in result.claims if claim.judged])
    shown = ", ".join(f"{count} {name}" for name, count in counts.items())
    lost = sum(claim.outcome is Outcome.NOT_RUNNABLE for claim in result.claims)
    shown += f"; {lost} not runnable here" if lost else ""
    return f"| {result.paper.name} | {len(result.claims)} | {result.judged} | {shown} |"


def replaced(text: str, table: str) -> str:
    """Return `text` with what stands between the two marks replaced by `table`. Raises ValueError without marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"has no lines {BEGIN} and {END}")
    return f"{before}{begin}\n{table}\n{end}{after}"
