"""One self-contained HTML page of what became of papers' claims: no script, no network, readable when printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from orch.reproduce.document import HEADERS, PaperResult, claim_rows, summary
from orch.reproduce.judge import CellResult, ClaimResult
from orch.units import format_seconds

COLOURS = {
    "reproduced": "#1b7837",
    "ratio only": "#5aae61",
    "consistent": "#8c8c2e",
    "smaller effect": "#bf812d",
    "larger effect": "#bf812d",
    "inconclusive": "#777777",
    "contradicted": "#b2182b",
    "invalid": "#b2182b",
    "not runnable here": "#4d6fa5",
    "not yet judged": "#4d6fa5",
    "fitted": "#999999",
}
_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:82rem;padding:0 1rem;color:#222;background:#fff}
table{border-collapse:collapse;width:100%;margin:.6rem 0}th,td{text-align:left;vertical-align:top;padding:.25rem .6rem;
border-bottom:1px solid #ddd}th{border-bottom:2px solid #888}td.num{font-variant-numeric:tabular-nums;white-space:nowrap}
.out{color:#fff;border-radius:.3rem;padding:.05rem .45rem;white-space:nowrap}details{margin:.2rem 0}summary{cursor:pointer}
.lineage td{font-size:13px;color:#444}h1{font-size:1.6rem}h2{margin-top:2.2rem}.muted{color:#666}
@media print{details{display:block}}
"""


def page(results: Sequence[PaperResult], version: str) -> str:
    """Return the page of several papers; every figure carries its mode in the heading of its column."""
    names = ", ".join(result.paper.name for result in results)
    body = "\n".join(part for result in results for part in _paper(result))
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(f'Claims of {names}')}</title><style>{_STYLE}</style></head><body>"
    )
    intro = (
        "<h1>What became of the claims</h1><p>Every claim is judged by one rule over fixed draws of what is uncertain; "
        "evidence and outcome are two things, and never merged. Nothing was measured: every figure of ours is "
        f"<b>simulated</b> (orch {escape(version)}).</p>"
    )
    return f"{head}{intro}{_totals(results)}{body}</body></html>\n"


def _totals(results: Sequence[PaperResult]) -> str:
    if len(results) < 2:
        return ""
    rows = "".join(
        f'<tr><td><a href="#{escape(result.paper.name)}">{escape(result.paper.name)}</a></td>'
        f"<td>{result.judged} of {len(result.claims)}</td><td>{escape(result.paper.spec.title)}</td></tr>"
        for result in results
    )
    lines = summary([claim for result in results for claim in result.claims])
    return f"<table><tr><th>paper</th><th>judged</th><th>title</th></tr>{rows}</table>{_paragraph(lines)}"


def _paragraph(lines: Iterable[str]) -> str:
    return "<p>" + "<br>".join(escape(line) for line in lines) + "</p>"


def _paper(result: PaperResult) -> Iterator[str]:
    spec = result.paper.spec
    yield f'<h2 id="{escape(spec.paper)}">{escape(spec.paper)}: {escape(spec.title)}</h2>'
    repository = f"; authors' code: {spec.repository}" if spec.repository else ""
    yield f'<p class="muted">{escape(spec.venue + repository)}</p>'
    yield _paragraph(summary(result.claims))
    yield from (_paragraph([f"table {name}: {found}"]) for name, found in result.predictions.items())
    yield _table(result.claims)
    if result.checks:
        yield "<h3>Our checks</h3><p class='muted'>Derivations of ours, which the paper did not publish.</p>"
        yield _table(result.checks)
    for found in result.defects:
        yield f"<h3>{escape(found.defect.id)}</h3><p>{escape(found.defect.says)}</p>"
        example = spec.experiments[found.defect.experiment].says
        yield (
            f"<p>Smallest counter-example: {escape(example)}. As published ({escape(found.defect.published)}) "
            f"{format_seconds(found.published_s)}, mended ({escape(found.defect.mended)}) "
            f"{format_seconds(found.mended_s)}.</p>"
        )


def _table(claims: Sequence[ClaimResult]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in (*HEADERS[:-1], "evidence", HEADERS[-1]))
    return f"<table><tr>{head}</tr>{''.join(_claim(claim) for claim in claims)}</table>"


def _claim(claim: ClaimResult) -> str:
    rows = claim_rows(claim)
    says = f'<tr><td colspan="7"><b>{escape(claim.claim.id)}</b> {escape(claim.claim.says)}</td></tr>'
    cells = claim.cells or (None,)
    return says + "".join(_row(row, cell) for row, cell in zip(rows, cells, strict=True))


def _row(row: Sequence[str], cell: CellResult | None) -> str:
    name, published, ours, absolute, outcome, why = row
    evidence = str(cell.evidence) if cell is not None else ""
    colour = COLOURS.get(outcome, "#555")
    lineage = "" if cell is None else _lineage(cell)
    return (
        f'<tr><td>{escape(name)}</td><td class="num">{escape(published)}</td><td class="num">{escape(ours)}</td>'
        f'<td>{escape(absolute)}</td><td><span class="out" style="background:{colour}">{escape(outcome)}</span></td>'
        f"<td>{escape(evidence)}</td><td>{escape(why)}{lineage}</td></tr>"
    )


def _lineage(cell: CellResult) -> str:
    rows = "".join(
        f"<tr><td>{escape(origin.name)}</td><td>{escape(origin.value)}</td><td>{escape(origin.where)}</td>"
        f"<td>{escape(origin.source)}{escape('; evidence: ' + ', '.join(origin.evidence)) if origin.evidence else ''}</td></tr>"
        for origin in cell.inputs
    )
    ids = escape(", ".join(number for entry in cell.numbers for number in entry.ids))
    return (
        f"<details><summary>lineage</summary><p class='muted'>published: {ids} [{escape(cell.numbers[0].source)}]</p>"
        f'<table class="lineage">{rows}</table></details>'
    )
