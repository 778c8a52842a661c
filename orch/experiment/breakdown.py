"""Where the time of a step goes: every instant of a rank belongs to one class, so the classes add up to the step.

What the device does comes first (`compute`, or `encode_decode` for what compression costs). While it stands still, a
running collective is `exposed` communication of its stream, less what the rank spent `waiting` for others to join.
When nothing runs at all a simulated rank waits for slower ones, since nothing else holds a task back there; a measured
one is in the hands of its host: `overhead`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from orch.plan import COMPUTE, Collective, Compute, Update
from orch.plan.timeline import Span, Timeline, Times

COMPUTING, CODING, EXPOSED, WAITING, OVERHEAD = "compute", "encode_decode", "exposed", "waiting", "overhead"
# What an instant counts as when several things run: the lowest number.
_ORDER = {COMPUTING: 0, CODING: 1, EXPOSED: 2, WAITING: 3}

Breakdown = dict[str, float]  # class -> seconds a step; exposed communication as `exposed:STREAM`


class _Piece(NamedTuple):
    start_s: float
    end_s: float
    rank: int
    name: str


def breakdown(timeline: Timeline, waits: Sequence[Times] | None = None) -> Breakdown:
    """Return seconds a step of each class over the steady state of `timeline`, as the rank that recorded it spent them.

    They add up to the length of a step there. `waits` [iterations][tasks] are the seconds that this rank waited for the
    others at each collective (`waits`); without them waiting counts as communication. An engine that records no
    collective (torch's DDP) shows everything around its own computing as overhead: see `opaque`.
    """
    begin, end, steps = _window(timeline)
    places = [{task.name: number for number, task in enumerate(step)} for step in timeline.plan.steps]
    pieces: list[_Piece] = []
    for span in timeline.spans():
        place = places[span.iteration % timeline.plan.period][span.task.name]
        pieces += _pieces(span, 0.0 if waits is None else float(waits[span.iteration][place]))
    rest = WAITING if timeline.mode == "simulated" else OVERHEAD
    found: dict[str, float] = {COMPUTING: 0.0, CODING: 0.0, WAITING: 0.0, OVERHEAD: 0.0}
    for start, stop, name in _flattened(pieces, begin, end, rest):
        found[name] = found.get(name, 0.0) + (stop - start) / steps
    return {name: found[name] for name in sorted(found, key=_place)}


def opaque(timeline: Timeline, compute_s: float) -> Breakdown:
    """Return the breakdown of an engine that records no collective, by taking its computing to be `compute_s` a step.

    What its forward, backward and update took beyond that is communication that was not hidden, as far as anybody
    outside can tell; what lies between them is overhead.
    """
    begin, end, steps = _window(timeline)
    whole = (end - begin) / steps
    inside = min(_recorded_s(timeline) / steps, whole)
    computing = min(compute_s, inside)
    stream = next((task.stream for step in timeline.plan.steps for task in step if isinstance(task.op, Collective)), "")
    exposed = {f"{EXPOSED}:{stream}": inside - computing} if stream else {}
    over = whole - inside if stream else whole - computing
    return {COMPUTING: computing, CODING: 0.0, **exposed, WAITING: 0.0, OVERHEAD: over}


def measured_breakdowns(
    recorded: Mapping[str, Sequence[Timeline | None]], predicted_s: Mapping[str, float]
) -> dict[str, Breakdown]:
    """Return where rank 0's time went in every stack of one training, from what all ranks recorded: stack -> ranks.

    `predicted_s` are the seconds that a step of each stack computes, by the layer times of the warm-up. For an engine
    that hides its collectives they are corrected by how much longer (or shorter) the other stacks really computed: on a
    machine whose cores are shared a warm-up tells little.
    """
    found: dict[str, Breakdown] = {}
    hidden: dict[str, Timeline] = {}
    for name, timelines in recorded.items():
        kept = [timeline for timeline in timelines if timeline is not None]
        if timelines[0] is not None and records_collectives(timelines[0]):
            found[name] = breakdown(timelines[0], waits(kept))
        elif timelines[0] is not None:
            hidden[name] = timelines[0]
    longer = [
        (parts[COMPUTING] + parts[CODING]) / predicted_s[name] for name, parts in found.items() if predicted_s[name] > 0
    ]
    factor = median(longer) if longer else 1.0
    return found | {name: opaque(timeline, factor * predicted_s[name]) for name, timeline in hidden.items()}


def records_collectives(timeline: Timeline) -> bool:
    """Return whether the engine that made `timeline` says when its collectives ran."""
    planned = any(isinstance(task.op, Collective) for step in timeline.plan.steps for task in step)
    return not planned or any(isinstance(span.task.op, Collective) for span in timeline.spans())


def waits(timelines: Sequence[Timeline]) -> list[Times]:
    """Return, for the first of several ranks' timelines of the same steps, what it waited at each collective [s].

    Nobody can end a collective before the last rank has joined, and that rank's own took the shortest: what another
    rank's took longer, it waited. Only lengths are compared, so the ranks' clocks need not agree.
    """
    first = timelines[0]
    shared = min(len(timeline) for timeline in timelines)
    found: list[Times] = []
    for index in range(len(first)):
        own = first.ends[index] - first.starts[index]
        if index < shared:
            lengths = np.array([timeline.ends[index] - timeline.starts[index] for timeline in timelines])
            least = np.fmin.reduce(lengths, axis=0)
            found.append(np.nan_to_num(own - least))
        else:
            found.append(np.zeros_like(own))
    return found


def scaled(parts: Iterable[Breakdown], step_time_s: float) -> Breakdown:
    """Return the mean of several breakdowns as parts of a step of `step_time_s`: what was recorded are a few steps, the
    step time is that of all blocks.
    """
    parts = list(parts)
    total: dict[str, float] = {}
    for part in parts:
        whole = sum(part.values())
        for name, seconds in part.items():
            total[name] = total.get(name, 0.0) + (seconds / whole if whole > 0 else 0.0) / len(parts)
    return {name: total[name] * step_time_s for name in sorted(total, key=_place)}


def title(name: str) -> str:
    """Return a class as people read it."""
    kind, _, stream = name.partition(":")
    return f"exposed {stream}" if kind == EXPOSED else {CODING: "encode/decode"}.get(kind, kind)


def ordered(names: Iterable[str]) -> list[str]:
    """Return classes in the order in which they are shown."""
    return sorted(set(names), key=_place)


def _place(name: str) -> tuple[int, str]:
    kind, _, stream = name.partition(":")
    return [COMPUTING, CODING, EXPOSED, WAITING, OVERHEAD].index(kind), stream


def _window(timeline: Timeline) -> tuple[float, float, int]:
    """Return begin, end and number of steps: the last period where a period comes before it, else all there is."""
    period, ends = timeline.plan.period, timeline.boundaries
    if timeline.mode == "simulated" and len(ends) > period:
        return float(ends[-1 - period]), float(ends[-1]), period
    return 0.0, float(ends[-1]), len(ends)


def _pieces(span: Span, waited_s: float) -> Iterator[_Piece]:
    start, end, op = span.start_s, span.end_s, span.task.op
    if math.isnan(start):
        return
    if span.task.stream == COMPUTE or not isinstance(op, Collective):
        name = COMPUTING if isinstance(op, Compute | Update) else CODING
        yield _Piece(start, end, _ORDER[name], name)
        return
    joined = min(end, start + waited_s)
    yield _Piece(start, joined, _ORDER[WAITING], WAITING)
    yield _Piece(joined, end, _ORDER[EXPOSED], f"{EXPOSED}:{span.task.stream}")


def _flattened(pieces: Sequence[_Piece], begin: float, end: float, rest: str) -> Iterator[tuple[float, float, str]]:
    """Cut [begin, end] where pieces begin and end, and give each part to what comes first of those that run in it."""
    events: list[tuple[float, int, tuple[int, str]]] = []
    for piece in pieces:
        start, stop = max(begin, piece.start_s), min(end, piece.end_s)
        if stop > start:
            events += [(start, 1, (piece.rank, piece.name)), (stop, -1, (piece.rank, piece.name))]
    running: dict[tuple[int, str], int] = {}
    now = begin
    for time, change, key in sorted(events):
        if time > now:
            active = [known for known, number in running.items() if number > 0]
            yield now, time, min(active)[1] if active else rest
            now = time
        running[key] = running.get(key, 0) + change
    if end > now:
        yield now, end, rest


def _recorded_s(timeline: Timeline) -> float:
    """Return the seconds inside forward, backward and update, of which an opaque engine stamps the outer ends only."""
    total = 0.0
    for index in range(len(timeline)):
        step = timeline.plan.steps[index % timeline.plan.period]
        for kind in dict.fromkeys(task.op.kind for task in step if not isinstance(task.op, Collective)):
            chosen = [number for number, task in enumerate(step) if task.op.kind == kind]
            starts, ends = timeline.starts[index][chosen], timeline.ends[index][chosen]
            if not np.isnan(starts).all() and not np.isnan(ends).all():
                total += float(np.nanmax(ends) - np.nanmin(starts))
    return total
