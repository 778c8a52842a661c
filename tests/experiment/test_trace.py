"""Traces: valid for Perfetto, a process a timeline, a lane a stream."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from orch.errors import OrchError
from orch.experiment.trace import trace, write_trace
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
    write_trace(tmp_path / "t.json", {"one": TIMELINE})
    assert json.loads((tmp_path / "t.json").read_text())["displayTimeUnit"] == "ms"
    with pytest.raises(OrchError, match=r"^cannot write .*none/t.json: No such file or directory \[E602\]$"):
        write_trace(tmp_path / "none" / "t.json", {"one": TIMELINE})
