"""A search in simulation whose best are then measured: which, how many, and what a second invocation does again."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from orch.experiment.show import Terminal
from orch.sweep import confirm, measured
from orch.sweep.doing import Asked
from orch.sweep.invoke import sweep
from orch.sweep.metrics import Objective, Sought
from orch.sweep.real import Bench
from orch.sweep.study import About, Record

FIRST = (
    "sweep.over={stack: [merged, small], techniques.mg-wfbp.min_bucket: [0B, 1B], techniques.acp-sgd.rank: [1, 2, 4]}",
    "sweep.simulate_first={trials: 20, confirm: 2}",
    "measure={blocks: 1, steps: 2, warmup: 0}",
)


def record(number: int, stack: str, **values: float) -> Record:
    return Record(number, "complete", {"stack": stack}, About("complete", values))


def test_the_best_come_first_fronts_one_behind_another() -> None:
    one = Sought((Objective("step_time", False),))
    records = [record(0, "a", step_time=3.0), record(1, "a", step_time=1.0), record(2, "b", step_time=2.0)]
    assert [each.number for each in measured.best_first(records, one)] == [1, 2, 0]
    two = Sought((Objective("step_time", False), Objective("throughput", True)))
    points = [(1.0, 1.0), (2.0, 9.0), (1.5, 0.5), (3.0, 0.1)]
    records = [record(n, "a", step_time=time, throughput=speed) for n, (time, speed) in enumerate(points)]
    assert [each.number for each in measured.best_first(records, two)] == [0, 1, 2, 3]
    assert {each.number for each in measured.best_first(records[::-1], two)[:2]} == {0, 1}


def test_of_plans_that_come_out_alike_one_is_measured() -> None:
    records = [record(0, "a", step_time=1.0), record(1, "a", step_time=1.0), record(2, "b", step_time=1.0)]
    assert [each.number for each in measured.apart(records)] == [0, 2]


def test_the_best_of_a_simulation_are_measured_once(search, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    run = Bench.run
    monkeypatch.setattr("orch.track.indexer.available", lambda: False)
    monkeypatch.setattr(Bench, "run", lambda self, *given, **more: runs.append(1) or run(self, *given, **more))
    monkeypatch.setattr(confirm, "LEAST_BLOCKS", 1)

    def swept(**asked):
        asked = Asked(str(search), FIRST, on="processes", runs=tmp_path / "runs", **asked)
        return sweep(asked, Terminal(io.StringIO()))

    found = swept()
    assert found["counts"] == {"complete": 2}
    assert len(runs) == 3  # two trials, and the best beside the baseline
    assert [trial["mode"] for trial in found["trials"]] == ["measured"] * 2
    assert len({str(trial["params"]) for trial in found["trials"]}) == 2
    pairs = found["agreement"]["trials"]
    assert [pair["predicted"] for pair in pairs] == [trial["predicted"]["step_time_s"] for trial in found["trials"]]
    assert [pair["measured"] for pair in pairs] == [trial["values"]["step_time_s"] for trial in found["trials"]]
    confirmed = found["best"]["confirmed"]
    assert (confirmed["mode"], confirmed["over"]) == ("measured", "ddp")
    kept = Path(found["run_dir"]) / "trials/confirmed"
    assert (kept / "stacks/ddp/trace.json").is_file()
    facts = json.loads((kept / "run.json").read_text())
    assert (facts["id"], facts["baseline"]) == (Path(found["run_dir"]).name, "ddp")
    again = swept()
    assert (again["trials"], again["best"]) == (found["trials"], found["best"])
    assert len(runs) == 3
    more = swept(trials=3)
    assert [trial["params"] for trial in more["trials"][:2]] == [trial["params"] for trial in found["trials"]]
    assert (more["counts"], len(runs) - (more["best"]["number"] == 2)) == ({"complete": 3}, 4)
