"""Keep what became of a paper's claims as a run: a directory anybody can copy, and an index entry a claim.

To the tracker a claim is what a stack is to an experiment: a part of the run with results of its own. So where MLflow is
installed every claim becomes a run of its own below the paper's, its outcome and evidence as tags, its numbers as metrics.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orch.reproduce.document import MODE, PaperResult, document
from orch.reproduce.judge import ClaimResult
from orch.reproduce.page import page
from orch.track.directory import Facts
from orch.track.settings import runs_root
from orch.track.tracker import Tracker


def keep(result: PaperResult, runs: Path | None, version: str) -> Path | None:
    """Write the run of one paper below `runs` (default: where runs are kept) and return its directory."""
    spec = result.paper.spec
    claims = {claim.claim.id: _results(claim) for claim in result.claims}
    facts = Facts(spec.paper, MODE, tuple(claims), command=tuple(sys.argv), origin=str(result.paper.path))
    resolved: Mapping[str, Any] = {"paper": spec.paper, "title": spec.title, "venue": spec.venue}
    tracker = Tracker(runs_root(runs))
    try:
        with tracker.run(facts, resolved) as run:
            run.start()
            run.write("claims.json", document([result]))
            run.write("report.html", page([result], version))
            run.finish({"judged": result.judged, "claims": len(claims), "stacks": claims, "complete": True})
            return run.path
    finally:
        tracker.close()


def _results(claim: ClaimResult) -> dict[str, Any]:
    """Return a claim's results as the index keeps them: words become tags, numbers metrics."""
    found: dict[str, Any] = {
        "says": claim.claim.says,
        "outcome": str(claim.outcome or "none"),
        "evidence": str(claim.evidence),
        "why": claim.why,
    }
    for cell in claim.cells:
        values: dict[str, Any] = {}
        for number, (published, band) in enumerate(zip(cell.published, cell.ours, strict=True)):
            suffix = f"_{number}" if len(cell.ours) > 1 else ""
            values |= {f"published{suffix}": published, f"ours{suffix}": band.median}
            values |= {f"ours_lo{suffix}": band.lo, f"ours_hi{suffix}": band.hi}
        if cell.verdict is not None:
            values["outcome"] = str(cell.verdict.outcome)
        found[cell.name if len(cell.name) < 80 else str(claim.claim.aggregate)] = values
    return found
