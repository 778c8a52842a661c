"""A timeline as text: one row a stream, one column a slice of time."""

from __future__ import annotations

from collections.abc import Sequence

from orch.plan.timeline import Span, Timeline
from orch.units import format_seconds

MARKS = {
    "forward": "F", "backward": "B", "update": "U", "idle": ".", "expert": "E", "expert_backward": "E", "all_to_all": "X",
    "gather_rows": "G", "scatter_rows": "S", "sum_rows": "+", "attend": "A", "attend_backward": "A",
    "stage_forward": "F", "stage_backward": "B",
}  # fmt: skip
# What marks mean; all but the first line only where one of its own is drawn.
LEGEND = (
    ("", "F forward, B backward, U update, c other computing, 0-9a-z bucket of a collective, . idle: what fills most of a column"),
    ("EXGS+", "E experts of a mixture, X rows on their way to them or back, G, S, + rows gathered, shared, added up in a node"),
    ("A", "A attention and what else is dense between mixtures, where it is cut into chunks as they are"),
)  # fmt: skip


def legend(rows: Sequence[str]) -> str:
    """Return what the marks in `rows`, as `draw` returned them, mean."""
    drawn = set("".join(row.partition("|")[2] for row in rows))
    return "\n".join(line for marks, line in LEGEND if not marks or drawn & set(marks))


def draw(timeline: Timeline, width: int = 72) -> list[str]:
    """Return the last whole period of `timeline` as text: a row a stream, `width` columns, and its length.

    The window runs from the end of one step's computing to the end of the next; what reaches over is cut. A column
    shows what took most of its slice, so a task much shorter than a column may be hidden.
    """
    period = timeline.plan.period
    begin = float(timeline.boundaries[-1 - period]) if len(timeline) > period else 0.0
    end = float(timeline.boundaries[-1])
    chosen = [span for span in timeline.spans() if span.end_s > begin and span.start_s < end]
    if not chosen:
        return []
    streams = sorted({span.task.stream for span in chosen})
    label = max(len(stream) for stream in streams)
    rows = []
    for stream in streams:
        spans = [span for span in chosen if span.task.stream == stream]
        rows.append(f"{stream:<{label}} |{_row(spans, begin, end, width)}|")
    steps = "one step" if period == 1 else f"{period} steps"
    return [*rows, f"{'':<{label}}  0{format_seconds(end - begin):>{width - 1}} ({steps})"]


def _row(spans: Sequence[Span], begin: float, end: float, width: int) -> str:
    cell = (end - begin) / width
    if cell <= 0:
        return MARKS["idle"] * width
    shares: list[dict[str, float]] = [{} for _ in range(width)]
    for span in spans:
        first = max(0, int((span.start_s - begin) / cell))
        for column in range(first, min(width, int((span.end_s - begin) / cell) + 1)):
            low, high = begin + column * cell, begin + (column + 1) * cell
            share = min(high, span.end_s) - max(low, span.start_s)
            if share > 0:
                mark = _mark(span)
                shares[column][mark] = shares[column].get(mark, 0.0) + share
    return "".join(_winner(share, cell) for share in shares)


def _winner(share: dict[str, float], cell: float) -> str:
    share = share | {MARKS["idle"]: cell - sum(share.values())}
    return max(share, key=lambda mark: share[mark])


def _mark(span: Span) -> str:
    kind, bucket = span.task.op.kind, span.task.name.rpartition(".b")[2]
    if span.task.stream.startswith("net.") and bucket.isdigit():
        return "0123456789abcdefghijklmnopqrstuvwxyz"[int(bucket) % 36]
    return MARKS.get(kind, "c")
