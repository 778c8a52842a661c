"""Timelines as a trace that Perfetto and chrome://tracing open: a process a timeline or a rank, a lane a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from orch.errors import OrchError
from orch.experiment.outcome import Outcome
from orch.plan.timeline import Timeline
from orch.simulate import simulate

STEPS = "steps"  # the lane that says which stack and step the others show
WARM_PERIODS = 2  # of a simulation, before what is shown of it

Document = dict[str, Any]


def trace(timelines: Mapping[str, Timeline]) -> Document:
    """Return a trace document (JSON types; times in microseconds, as the format wants) of timelines by name, each from 0.

    Arguments of an event: payload in bytes, group, and the tensors served. Every process name says whether it was
    simulated, emulated or measured.
    """
    events: list[Document] = []
    for number, (name, timeline) in enumerate(timelines.items(), start=1):
        events.append(_named("process_name", number, 0, f"{name} ({timeline.mode})"))
        lanes: dict[str, int] = {}
        for event, stream in _events(timeline):
            events += _lane(lanes, number, stream)
            events.append(event | {"pid": number, "tid": lanes[stream]})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def run_trace(outcome: Outcome) -> Document | None:
    """Return the trace of a run: a process a rank on one clock, all stacks in it, and one for what was predicted.

    Of every stack it holds the steps that the ranks' timelines hold: the last ones of its last block. The same steps as
    predicted begin where rank 0's did. `otherData` says how far the clocks may be apart. None: no rank recorded any.
    """
    shown = [trained for trained in outcome.trained if trained.seed == outcome.trained[0].seed and any(trained.ranks)]
    if not shown:
        return None
    zero_s = min(timeline.began_s for trained in shown for timeline in trained.ranks if timeline is not None)
    size = max(len(trained.ranks) for trained in shown)
    processes: dict[int, dict[str, int]] = {}
    events: list[Document] = []
    for trained in shown:
        predicted = outcome.forecast.stacks[trained.stack]
        rows = [(f"rank {rank}", rank, timeline) for rank, timeline in enumerate(trained.ranks) if timeline is not None]
        steps = simulate(
            predicted.plan,
            outcome.forecast.cluster,
            iterations=len(rows[0][2]) + WARM_PERIODS * predicted.plan.period,
        )
        rows.append(("predicted", size, _settled(steps, WARM_PERIODS * predicted.plan.period, rows[0][2].began_s)))
        for title, place, timeline in rows:
            process = place + 1
            if process not in processes:
                processes[process] = {}
                events.append(_named("process_name", process, 0, f"{title} ({timeline.mode})"))
                events.append({**_named("process_sort_index", process, 0, ""), "args": {"sort_index": place}})
            shift_us = (timeline.began_s - zero_s) * 1e6
            events += _rows(timeline, processes[process], process, shift_us, trained.stack)
    error_s = outcome.clock_error_s
    about = {"clock_error_s": error_s, "clock": "rank 0's", "steps": "the last ones of every stack's last block"}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _rows(timeline: Timeline, lanes: dict[str, int], pid: int, shift_us: float, stack: str) -> Iterator[Document]:
    """Yield the events of one timeline in a process that others may share, `lanes` by stream growing with them."""
    begin = 0.0
    for index, end in enumerate(map(float, timeline.boundaries)):
        yield from _lane(lanes, pid, STEPS)
        yield {
            "name": f"{stack}, step {index}", "cat": STEPS, "ph": "X", "pid": pid, "tid": lanes[STEPS],
            "ts": begin * 1e6 + shift_us, "dur": (end - begin) * 1e6, "args": {"stack": stack},
        }  # fmt: skip
        begin = end
    for event, stream in _events(timeline):
        yield from _lane(lanes, pid, stream)
        event["args"]["stack"] = stack
        yield event | {"pid": pid, "tid": lanes[stream], "ts": event["ts"] + shift_us}


def _events(timeline: Timeline) -> Iterator[tuple[Document, str]]:
    """Yield every task that ran as an event without a place, and its stream."""
    for span in timeline.spans():
        task = span.task
        yield (
            {
                "name": task.name,
                "cat": task.op.kind,
                "ph": "X",
                "ts": span.start_s * 1e6,
                "dur": (span.end_s - span.start_s) * 1e6,
                "args": {
                    "iteration": span.iteration,
                    "payload_bytes": task.op.nbytes,
                    "group": task.group,
                    "tensors": list(task.op.tensors),
                },
            },
            task.stream,
        )


def _settled(timeline: Timeline, first: int, began_s: float) -> Timeline:
    """Return a simulation from iteration `first` (a multiple of the period, above 0) on, as if it had begun at `began_s`."""
    zero = float(timeline.boundaries[first - 1])
    starts, ends = (tuple(np.array(one) - zero for one in times[first:]) for times in (timeline.starts, timeline.ends))
    boundaries = timeline.boundaries[first:] - zero
    return replace(timeline, starts=starts, ends=ends, boundaries=boundaries, began_s=began_s)


def _lane(lanes: dict[str, int], process: int, stream: str) -> Iterator[Document]:
    """Yield the event that names the lane of `stream` in a process, the first time."""
    if stream not in lanes:
        lanes[stream] = len(lanes) + 1
        yield _named("thread_name", process, lanes[stream], stream)


def _named(what: str, process: int, thread: int, name: str) -> Document:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def refuse_place(path: Path) -> None:
    """Raise OrchError (E602) where no trace could be written in the end."""
    if path.is_dir() or not path.parent.is_dir():
        reason = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise OrchError(f"cannot write {path}: {reason}", code="E602")


def write_trace(path: Path, document: Document) -> None:
    """Write a trace to `path`. Raises OrchError where that cannot be written."""
    try:
        path.write_text(json.dumps(document), encoding="utf-8")
    except OSError as error:
        raise OrchError(f"cannot write {path}: {error.strerror}", code="E602") from None
