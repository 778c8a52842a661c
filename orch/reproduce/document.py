"""What `orch reproduce` says, as plain data: one document for programs, and the rows of the table for people."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from typing import Any

from orch.reproduce.judge import Absolute, Band, CellResult, ClaimResult, Judge
from orch.reproduce.lineage import Evidence
from orch.reproduce.paper import Paper
from orch.reproduce.predictions import Prediction, predict_tables
from orch.reproduce.schema import ORDERED, Defect
from orch.reproduce.verdict import Outcome
from orch.units import format_seconds

MODE = "simulated"


@dataclass(frozen=True)
class DefectResult:
    """A defect's counter-example: the step times of the published and the mended algorithm in seconds."""

    defect: Defect
    published_s: float
    mended_s: float

    @property
    def worse(self) -> float:
        """Published over mended."""
        return self.published_s / self.mended_s


@dataclass(frozen=True)
class PaperResult:
    """What became of one paper's claims, our own checks beside them, and its algorithms that were mended."""

    paper: Paper
    claims: tuple[ClaimResult, ...]
    checks: tuple[ClaimResult, ...]
    defects: tuple[DefectResult, ...]
    predictions: Mapping[str, Prediction] = field(default_factory=dict)

    @property
    def judged(self) -> int:
        """How many claims have an outcome."""
        return sum(claim.judged for claim in self.claims)


def reproduce(paper: Paper, costs: str | None = None) -> PaperResult:
    """Run everything a paper's file names, and judge its claims."""
    judge = Judge(paper, costs)
    defects = tuple(DefectResult(defect, *judge.defect(defect)) for defect in paper.spec.defects)
    return PaperResult(paper, tuple(judge.claims()), tuple(judge.checks()), defects, predict_tables(judge))


def reproduce_all(papers: Sequence[Paper], costs: str | None = None) -> list[PaperResult]:
    """Return what became of several papers, in their order; where there are several processors, on all of them."""
    processes = min(len(os.sched_getaffinity(0)), len(papers))
    if processes < 2:
        return [reproduce(paper, costs) for paper in papers]
    # The longest first, so that no processor ends long after the others; claims tell how long one takes.
    order = sorted(papers, key=lambda paper: -sum(claim.experiment is not None for claim in paper.spec.claims))
    with ProcessPoolExecutor(processes, get_context("fork")) as pool:
        futures = {paper.name: pool.submit(reproduce, paper, costs) for paper in order}
        return [futures[paper.name].result() for paper in papers]


def document(results: Sequence[PaperResult]) -> dict[str, Any]:
    """Return the JSON document of several papers."""
    claims = [claim for result in results for claim in result.claims]
    return {
        "mode": MODE,
        "papers": [_paper(result) for result in results],
        "counts": {"outcome": outcomes(claims), "evidence": evidences(claims)},
        "judged": sum(claim.judged for claim in claims),
        "claims": len(claims),
    }


def outcomes(claims: Iterable[ClaimResult]) -> dict[str, int]:
    """Return how many claims have each outcome; those whose inputs were fitted on them have none."""
    counts = Counter(claim.outcome for claim in claims)
    found = {str(outcome): counts[outcome] for outcome in Outcome if counts[outcome]}
    return found | ({"none (fitted)": counts[None]} if counts[None] else {})


def evidences(claims: Iterable[ClaimResult]) -> dict[str, int]:
    """Return how many claims rest on each kind of evidence."""
    counts = Counter(claim.evidence for claim in claims)
    return {str(evidence): counts[evidence] for evidence in Evidence if counts[evidence]}


def _paper(result: PaperResult) -> dict[str, Any]:
    spec = result.paper.spec
    return {
        "paper": spec.paper,
        "title": spec.title,
        "venue": spec.venue,
        "claims": [_claim(claim) for claim in result.claims],
        "checks": [_claim(check) for check in result.checks],
        "defects": [
            {
                "id": found.defect.id,
                "says": found.defect.says,
                "published_step_s": found.published_s,
                "mended_step_s": found.mended_s,
                "worse": found.worse,
            }
            for found in result.defects
        ],
        "predictions": {
            table: {
                "median_error": found.median_error,
                "predicted": len(found.errors),
                "fitted": found.fitted,
                "best_right": found.best,
                "best_right_of_all": found.best_of_all,
                "cells": found.cells,
            }
            for table, found in result.predictions.items()
        },
        "judged": result.judged,
    }


def _claim(result: ClaimResult) -> dict[str, Any]:
    claim, cells = result.claim, result.cells
    single = cells[0] if len(cells) == 1 else None
    return {
        "id": claim.id,
        "says": claim.says,
        "metric": claim.metric,
        "of": claim.of,
        "over": claim.over,
        "cells": [_cell(cell, claim.metric in ORDERED) for cell in cells],
        "published": _published(single, claim.metric) if single else [_published(cell, claim.metric) for cell in cells],
        "ours": [_band(band) for band in single.ours] if single else [[_band(band) for band in c.ours] for c in cells],
        "evidence": str(result.evidence),
        "outcome": None if result.outcome is None else str(result.outcome),
        "why": result.why,
    }


def _published(cell: CellResult, metric: str | None) -> Any:
    if metric in ORDERED:
        return True
    return cell.published[0] if len(cell.published) == 1 else list(cell.published)


def _cell(cell: CellResult, statement: bool) -> dict[str, Any]:
    verdict = cell.verdict
    return {
        "cell": cell.name,
        "published": True if statement else list(cell.published),
        "source": cell.numbers[0].source,
        "evidence_ids": [number for entry in cell.numbers for number in entry.ids],
        "ours": [_band(band) for band in cell.ours],
        "mode": MODE,
        "absolute": [
            {"stack": time.stack, "published_s": time.published_s, "ours_s": asdict(time.ours_s)}
            for time in cell.absolute
        ],
        "mended": None if cell.mended is None else _band(cell.mended),
        "with_cluster_costs": cell.other_costs or None,
        "evidence": str(cell.evidence),
        "evidence_why": cell.evidence_why,
        "outcome": None if verdict is None else str(verdict.outcome),
        "p_in": None if verdict is None else verdict.p_in,
        "p_side": None if verdict is None else verdict.p_side,
        "tau": None if verdict is None else verdict.tau,
        "why": cell.evidence_why if verdict is None else verdict.why,
    }


def _band(band: Band) -> dict[str, float]:
    return asdict(band)


# ---- the table for people

HEADERS = ("claim and cell", "published", f"ours ({MODE})", "step times, ours / published", "outcome", "why")


def table_rows(claims: Iterable[ClaimResult]) -> list[list[str]]:
    """Return the rows of the table: one a cell, or one a claim that has none."""
    return [row for result in claims for row in claim_rows(result)]


def claim_rows(result: ClaimResult) -> list[list[str]]:
    """Return the rows of one claim: one a cell, or one that says why it has none."""
    if not result.cells:
        return [[result.claim.id, "", "", "", str(result.outcome or Evidence.FITTED), result.why]]
    rows = [_row(result, cell) for cell in result.cells]
    if result.claim.note:
        rows[0][-1] += f"; {result.claim.note}"
    return rows


def _row(result: ClaimResult, cell: CellResult) -> list[str]:
    claim = result.claim
    name = claim.id if claim.aggregate else f"{claim.id} {cell.name}"
    statement = claim.metric in ORDERED
    published = "holds" if statement else " to ".join(number(value) for value in cell.published)
    ours = (
        f"{cell.ours[0].median:.0%} of draws"
        if statement and cell.ours[0].median not in (0, 1)
        else _ours(cell, statement)
    )
    outcome = str(cell.verdict.outcome) if cell.verdict is not None else str(Evidence.FITTED)
    why = cell.verdict.why if cell.verdict is not None else cell.evidence_why
    extra = [f"mended: {number(cell.mended.median)}"] if cell.mended is not None else []
    extra += [f"planned with the cluster's own costs: {cell.other_costs}"] if cell.other_costs else []
    return [name, published, ours, _absolute(cell.absolute), outcome, "; ".join([why, *extra])]


def _ours(cell: CellResult, statement: bool) -> str:
    if statement:
        return "holds" if cell.ours[0].median == 1 else "does not hold"
    return " to ".join(f"{number(band.median)} [{number(band.lo)}, {number(band.hi)}]" for band in cell.ours)


def _absolute(times: Sequence[Absolute]) -> str:
    if len(times) > 3:
        worst = max(times, key=lambda time: time.off)
        return f"{len(times)} times, furthest off {format_seconds(worst.ours_s.median)} / {format_seconds(worst.published_s)}"
    return ", ".join(f"{t.stack} {format_seconds(t.ours_s.median)} / {format_seconds(t.published_s)}" for t in times)


def number(value: float) -> str:
    """Return a number as the table shows it."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}" if abs(value) >= 100 else f"{value:.3f}"


def summary(claims: Sequence[ClaimResult]) -> list[str]:
    """Return the counts in words."""
    judged = sum(claim.judged for claim in claims)
    return [
        f"{judged} of {len(claims)} claims could be judged",
        "outcome: " + ", ".join(f"{count} {name}" for name, count in outcomes(claims).items()),
        "evidence: " + ", ".join(f"{count} {name}" for name, count in evidences(claims).items()),
    ]


def standing(papers: Sequence[Paper]) -> list[dict[str, Any]]:
    """Return a line a paper: how many of its claims can be run, which needs no running to know."""
    rows = []
    for paper in papers:
        claims = paper.spec.claims
        missing = sum(bool(claim.missing) for claim in claims)
        pending = sum(bool(claim.pending) for claim in claims)
        rows.append(
            {
                "paper": paper.name,
                "claims": len(claims),
                "runnable": len(claims) - missing - pending,
                "not_runnable": missing,
                "not_yet_judged": pending,
                "title": paper.spec.title,
            }
        )
    return rows
