"""Traces: valid for Perfetto, a process a timeline, a lane a stream."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from orch.errors import OrchError
from orch.experiment.trace import STEPS, refuse_place, run_trace, trace, write_trace
from orch.simulate import simulate
from orch.testing.small import cluster, profile
from orch.workload import data_parallel

MODEL = profile([(1,), (3,)], backward_s=[2.0, 2.0], forward_s=[1.0, 1.0])
TIMELINE = simulate(data_parallel(MODEL, 2, 1, update_s=0.0), cluster(2, alpha_s=1e-3))


def test_every_task_is_an_event_in_the_lane_of_its_stream() -> None:
    events = trace({"one": TIMELINE, "two": TIMELINE})["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert processes == {1: "one (simulated)", 2: "two (simulated)"}
    lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(lanes.values()) == ["compute", "compute", "net.inter", "net.inter"]
    complete = [e for e in events if e["ph"] == "X" and e["pid"] == 1]
    assert len(complete) == len(list(TIMELINE.spans()))
    by_lane = {lanes[1, e["tid"]]: e["cat"] for e in complete if e["cat"] in ("forward", "all_reduce")}
    assert by_lane == {"compute": "forward", "net.inter": "all_reduce"}


def test_times_are_microseconds_and_bytes_are_told() -> None:
    events = [e for e in trace({"one": TIMELINE})["traceEvents"] if e.get("cat") == "all_reduce"]
    span = next(span for span in TIMELINE.spans() if span.task.op.kind == "all_reduce")
    assert events[0]["ts"] == pytest.approx(span.start_s * 1e6)
    assert events[0]["dur"] == pytest.approx(1e3)
    assert events[0]["args"] == {
        "iteration": 0, "payload_bytes": 12, "group": "world", "tensors": ["l2.weight"],
    }  # fmt: skip


def test_tasks_of_a_lane_never_overlap() -> None:
    events = [e for e in trace({"one": TIMELINE})["traceEvents"] if e["ph"] == "X"]
    for lane in {e["tid"] for e in events}:
        own = sorted((e["ts"], e["dur"]) for e in events if e["tid"] == lane)
        assert all(start + length <= later + 1e-6 for (start, length), (later, _) in pairwise(own))


def test_a_written_trace_is_json_and_a_place_that_refuses_is_said(tmp_path: Path) -> None:
    write_trace(tmp_path / "t.json", trace({"one": TIMELINE}))
    assert json.loads((tmp_path / "t.json").read_text())["displayTimeUnit"] == "ms"
    with pytest.raises(OrchError, match=r"^cannot write .*none/t.json: No such file or directory \[E602\]$"):
        write_trace(tmp_path / "none" / "t.json", {})


def test_a_place_that_cannot_take_a_trace_is_refused_before_the_run(tmp_path: Path) -> None:
    assert refuse_place(tmp_path / "t.json") is None
    with pytest.raises(OrchError, match=r"cannot write .*: it is a folder \[E602\]"):
        refuse_place(tmp_path)
    with pytest.raises(OrchError, match=r"there is no folder .*none \[E602\]"):
        refuse_place(tmp_path / "none" / "t.json")


def test_a_run_is_one_trace_of_all_ranks_on_one_clock_with_the_prediction_beside_them(finished) -> None:
    made = run_trace(finished.outcome)
    events = made["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert list(processes.values()) == ["rank 0 (measured)", "rank 1 (measured)", "predicted (simulated)"]
    assert made["otherData"]["clock_error_s"] == 0.0  # one machine
    lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {(pid, name) for (pid, _), name in lanes.items()} >= {
        (pid, name) for pid in processes for name in (STEPS, "compute", "net.inter")
    }
    complete = [e for e in events if e["ph"] == "X"]
    for (pid, tid), name in lanes.items():
        own = sorted((e["ts"], e["dur"]) for e in complete if (e["pid"], e["tid"]) == (pid, tid))
        assert own
        if name == STEPS and pid < 3:  # stacks take turns
            assert all(start + length <= later + 1.0 for (start, length), (later, _) in pairwise(own))


def test_ranks_are_in_the_same_step_at_the_same_time_and_so_is_the_prediction(finished) -> None:
    events = run_trace(finished.outcome)["traceEvents"]
    for stack in ("plain", "merged", "small"):
        first = [e for e in events if e.get("cat") == STEPS and e["name"] == f"{stack}, step 0"]
        assert [e["pid"] for e in first] == [1, 2, 3]
        assert first[2]["ts"] == first[0]["ts"]
        # Ranks leave a collective together: on one clock their steps overlap, whichever of them began sooner.
        assert max(e["ts"] for e in first[:2]) < min(e["ts"] + e["dur"] for e in first[:2])
    assert min(e["ts"] for e in events if e["ph"] == "X" and e["pid"] < 3) >= 0.0


def test_nothing_recorded_is_no_trace(finished) -> None:
    outcome = finished.outcome
    bare = replace(outcome, trained=[replace(trained, ranks=()) for trained in outcome.trained])
    assert (run_trace(bare), bare.clock_error_s) == (None, None)
