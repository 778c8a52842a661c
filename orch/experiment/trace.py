"""Timelines as a trace that Perfetto and chrome://tracing open: a process a timeline, a lane a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orch.errors import OrchError
from orch.plan.timeline import Timeline


def trace(timelines: Mapping[str, Timeline]) -> dict[str, Any]:
    """Return a trace document (JSON types; times in microseconds, as the format wants) of timelines by name.

    Arguments of an event: payload in bytes, group, and the tensors served. Every process name says whether it was
    simulated, emulated or measured.
    """
    events: list[dict[str, Any]] = []
    for number, (name, timeline) in enumerate(timelines.items(), start=1):
        events.append(_named("process_name", number, 0, f"{name} ({timeline.mode})"))
        lanes: dict[str, int] = {}
        for span in timeline.spans():
            task = span.task
            if task.stream not in lanes:
                lanes[task.stream] = len(lanes) + 1
                events.append(_named("thread_name", number, lanes[task.stream], task.stream))
            events.append(
                {
                    "name": task.name,
                    "cat": task.op.kind,
                    "ph": "X",
                    "pid": number,
                    "tid": lanes[task.stream],
                    "ts": span.start_s * 1e6,
                    "dur": (span.end_s - span.start_s) * 1e6,
                    "args": {
                        "iteration": span.iteration,
                        "payload_bytes": task.op.nbytes,
                        "group": task.group,
                        "tensors": list(task.op.tensors),
                    },
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def write_trace(path: Path, timelines: Mapping[str, Timeline]) -> None:
    """Write the trace of `timelines` to `path`. Raises OrchError where that cannot be written."""
    try:
        path.write_text(json.dumps(trace(timelines)), encoding="utf-8")
    except OSError as error:
        raise OrchError(f"cannot write {path}: {error.strerror}", code="E602") from None
