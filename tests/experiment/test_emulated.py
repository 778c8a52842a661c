"""A whole run on emulated nodes: its figures are called emulated wherever they are kept."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from orch.experiment.invoke import Invocation, invoke
from orch.experiment.show import Quiet
from orch.gang import end_all
from orch.track import indexer
from tests.experiment.conftest import TINY
from tests.gang.emulation import can_emulate

OVERRIDES = (
    "cluster={use: emulated-4x200mbit, nodes: 2, unequal: {1: {bandwidth: 20Mbit, speed: 0.5}}}",
    "stacks={plain: [wfbp]}",
    "when={}",
    "seeds=[0]",
    "faults=[{slow_node: {node: 0, by: 8, step: 1, until: 3}}, {link_rate: {node: 0, bandwidth: 2Mbit, step: 5}}]",
)


@pytest.mark.slow
@can_emulate
def test_its_figures_are_called_emulated_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer, "available", lambda: False)
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(TINY, encoding="utf-8")
    end_all()
    document = invoke(Invocation(str(recipe), OVERRIDES, on="emulate", runs=tmp_path / "runs"), Quiet())
    end_all()
    assert document is not None
    assert document["mode"] == "emulated"
    assert document["notes"][0].startswith("emulated nodes of orch-")
    assert [note.rpartition(": ")[2] for note in document["notes"] if "block" in note] == [
        "node 0 is slower by 8 in steps 1 to 2", "the link of node 0 has another rate, 2 Mbit/s, from step 5 on",
    ]  # fmt: skip
    slow, rated = document["faults"]
    with (Path(str(document["run_dir"])) / "stacks" / "plain" / "steps.seed0.csv").open() as file:
        times = [float(row["step_time_s"]) for row in csv.DictReader(file) if row["step_time_s"]]
    # Steps 3 and 4 had neither; a tenth of the rate, for what hardly computes, is many times as long.
    assert rated["measured_step_time_s"] > 3 * min(times[2:4])
    assert slow["measured_step_time_s"] > min(times[2:4])
    assert rated["step_time_s"] > document["stacks"]["plain"]["predicted_step_time_s"]
    run = Path(str(document["run_dir"]))
    assert json.loads((run / "run.json").read_text())["mode"] == "emulated"
    assert json.loads((run / "results.json").read_text())["mode"] == "emulated"
    with (run / "figures" / "step_time.csv").open() as file:
        assert {row["mode"] for row in csv.DictReader(file)} == {"emulated"}
    trace = json.loads((run / "stacks" / "plain" / "trace.json").read_text())["traceEvents"]
    assert {event["args"]["name"] for event in trace if event["name"] == "process_name"} == {
        "plain, predicted (simulated)",
        "plain, rank 0 (emulated)",
    }
