"""The box that closes a report."""

from __future__ import annotations

from pathlib import Path

from orch.experiment.statistics import block_orders
from orch.report import data
from orch.report.fairness import fairness
from orch.report.stored import StoredRun


def box(root: Path, run: StoredRun) -> dict[str, str]:
    return dict(fairness(data.subject(root, run)))


def test_a_measured_run_says_on_what_terms_stacks_met(measured, tmp_path: Path) -> None:
    found = box(tmp_path / "runs", measured("when.small.train.optimizer.sgd.lr=0.02"))
    assert found["allocation"].startswith("one gang of 2 workers")
    order = block_orders(["plain", "merged", "small"], 4, 0)[0]
    assert " ".join(order) in found["block order"] and found["block order"].endswith("and 1 more")
    assert found["seeds"].startswith("0: ")
    assert found["tuning budget"].startswith("none")
    assert "small: optimizer.sgd.lr=0.02" in found["settings that differ"]
    assert found["baseline"] == "plain (wfbp), run by orch's own engine: not what torch's DDP would do"
    assert "orch " in found["versions"] and "torch " in found["versions"]
    assert found["conformance"].startswith("every step")
    assert (found["failed cells"], found["outliers"]) == ("none", "none")


def test_torchs_own_ddp_is_named(measured, tmp_path: Path) -> None:
    found = box(tmp_path / "runs", measured("stacks.plain=[torch-ddp]"))
    assert found["baseline"] == "plain: torch's own DistributedDataParallel, not orch's engine"


def test_a_simulated_run_claims_no_fairness_of_a_measurement(simulated, tmp_path: Path) -> None:
    found = box(tmp_path / "runs", simulated())
    assert found["allocation"] == "none: 2 workers were simulated, nothing was run"
    assert found["block order"].startswith("none")
    assert found["conformance"].startswith("does not apply")


def test_failed_cells_are_counted(measured, tmp_path: Path) -> None:
    run = measured()
    run.directory.write_json("results.json", dict(run.directory.results) | {"complete": False})
    found = box(tmp_path / "runs", StoredRun(run.directory))
    assert found["failed cells"] == "the run did not finish: done; blocks done: plain 4, merged 4, small 4"
