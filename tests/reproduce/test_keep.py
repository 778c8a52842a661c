"""A run of a paper's claims: the directory, and what the index would make of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from orch.reproduce.document import reproduce
from orch.reproduce.keep import keep
from orch.reproduce.paper import Paper
from orch.track import describe, indexer, state
from orch.track.directory import RunDirectory


def test_a_claim_is_a_part_of_the_run(folder: Path, changed: Callable[..., Paper], monkeypatch) -> None:
    monkeypatch.setattr(indexer, "available", lambda: False)
    path = keep(reproduce(changed()), folder / "runs", "0")
    assert path is not None
    assert {"report.html", "claims.json", "results.json"} <= {file.name for file in path.iterdir()}
    assert json.loads((path / "results.json").read_text())["judged"] == 2
    run = RunDirectory(path)
    parts = describe.parts(run, state.read(path) or state.new())
    assert [part.name for part in parts[1:]] == ["c1", "c2"]
    tags = describe.result_tags(parts[2])
    assert (tags["orch.result.outcome"], tags["orch.result.evidence"]) == (
        "reproduced",
        "simulated, inputs fitted on other rows",
    )
    metrics = {point.key: point.value for point in describe.result_metrics(parts[2].results, 0)}
    assert metrics["result/small.published"] == 1.22
