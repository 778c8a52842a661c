"""The lineage of one claim: its published numbers and every input of its cells, each followed to where it stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orch.errors import OrchError, did_you_mean, quoted
from orch.reproduce.judge import CellResult, Judge
from orch.reproduce.lineage import Origin
from orch.reproduce.paper import Paper
from orch.reproduce.schema import ORDERED, Claim


def lineage(paper: Paper, name: str, costs: str | None = None) -> dict[str, Any]:
    """Return the lineage of the claim `name` as plain data. Raises OrchError (E352) with the nearest name."""
    claims = {claim.id: claim for claim in (*paper.spec.claims, *paper.spec.checks)}
    if name not in claims:
        hint = did_you_mean(name, claims) or f"claims: {', '.join(claims)}"
        raise OrchError(f"{paper.name} has no claim {quoted(name)}", code="E352", hint=hint)
    claim = claims[name]
    result = Judge(paper, costs).result(claim)
    return {
        "paper": paper.name,
        "claim": claim.id,
        "says": claim.says,
        "written": str(paper.where(claim)),
        "evidence": str(result.evidence),
        "outcome": None if result.outcome is None else str(result.outcome),
        "why": result.why,
        "cells": [_cell(paper, claim, cell) for cell in result.cells],
    }


def _cell(paper: Paper, claim: Claim, cell: CellResult) -> dict[str, Any]:
    return {
        "cell": cell.name,
        "evidence": str(cell.evidence),
        "evidence_why": cell.evidence_why,
        "outcome": None if cell.verdict is None else str(cell.verdict.outcome),
        "why": cell.evidence_why if cell.verdict is None else cell.verdict.why,
        "published": [
            {
                "value": None if claim.metric in ORDERED else number.value,
                "source": number.source,
                "where": _stands(paper, claim),
                "ids": list(number.ids),
                "rows": [_row(paper, one) for one in number.ids],
            }
            for number in cell.numbers
        ],
        "inputs": [_input(origin) for origin in cell.inputs],
    }


def _stands(paper: Paper, claim: Claim) -> str:
    given = paper.spec.evidence.get(claim.published) if isinstance(claim.published, str) else None
    return given.where if given is not None else claim.where


def _row(paper: Paper, number: str) -> str:
    """Return where the number with an evidence id was written."""
    row_id, _, column = number.rpartition("/")
    for table in paper.tables.values():
        for row in table.rows:
            if row.id == row_id and column in row.cells:
                return f"{row.where}: {column} = {row.cells[column]}"
    name = number.removeprefix(f"{paper.name}/")
    if name in paper.spec.evidence:
        return str(paper.place("evidence", name))
    claims = {claim.id: claim for claim in (*paper.spec.claims, *paper.spec.checks)}
    return str(paper.where(claims[name])) if name in claims else ""


def _input(origin: Origin) -> dict[str, Any]:
    return {
        "input": origin.name,
        "value": origin.value,
        "written": origin.where,
        "source": origin.source,
        "evidence_ids": list(origin.evidence),
        "unsure": origin.unsure or None,
    }


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lineage as text."""
    yield f"{found['paper']} {found['claim']}: {found['says']}  ({found['written']})"
    yield f"{found['outcome'] or 'no outcome'}, {found['evidence']}: {found['why']}"
    for cell in found["cells"]:
        yield f"\n{cell['cell']}: {cell['outcome'] or 'no outcome'}; {cell['why']}"
        yield f"  evidence: {cell['evidence']}; {cell['evidence_why']}"
        for number in cell["published"]:
            value = "it holds" if number["value"] is None else f"{number['value']:.6g}"
            yield f"  published: {value}  [{number['source']}] {number['where']}"
            yield from (f"    {row}" for row in number["rows"] if row)
        yield "  inputs:"
        for entry in cell["inputs"]:
            yield f"    {entry['input']} = {entry['value']}  ({entry['written']})"
            if entry["source"]:
                yield f"      {entry['source']}"
            if entry["evidence_ids"]:
                yield f"      evidence: {', '.join(entry['evidence_ids'])}"
