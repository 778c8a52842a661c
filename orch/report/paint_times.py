"""Over time: what runs when, and how quality comes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from orch.report.style import GRID, INK, KINDS, LIMIT, OTHER, Rows, bytes_unit, colours, legend_below, unit_of

Tables = Mapping[str, Rows]
Lane = tuple[str, str, str]  # stack, mode, stream

MOST_NAMED = 16
STREAMS = {"compute": "compute", "net.inter": "network", "net.intra": "network", "host": "host"}


def loss(figure: Any, rows: Rows, tables: Tables, title: str) -> None:
    """Loss over each stack's own clock, and accuracy on held-out data beside it."""
    judged = tables.get("accuracy", ())
    figure.set_size_inches(8.4, 3.4)
    panels = figure.subplots(1, 2 if judged else 1, squeeze=False)[0]
    _curves(panels[0], rows, "clock_s", "mean_of_last")
    _label(panels[0], "own time of the stack [s]", "training loss, mean of 10 steps")
    if judged:
        _curves(panels[1], judged, "clock_s", "val_accuracy", marker="o")
        _label(panels[1], "own time of the stack [s]", "accuracy on held-out data")
    panels[0].set_title(f"{title}: training" if title else "training")
    legend_below(figure, *panels[0].get_legend_handles_labels())


def expert_load(figure: Any, rows: Rows, tables: Tables, title: str) -> None:
    """The share of a mixture's rows that each expert gets, over steps: a panel a mixture, the first stack's lines; the
    even share dashed.
    """
    del tables
    stack, seed = rows[0]["stack"], rows[0]["seed"]
    chosen = [row for row in rows if (row["stack"], row["seed"]) == (stack, seed)]
    mixtures = list(dict.fromkeys(row["mixture"] for row in chosen))
    figure.set_size_inches(8.4, 2.2 * len(mixtures) + 0.6)
    panels = figure.subplots(len(mixtures), 1, squeeze=False, sharex=True)[:, 0]
    for axes, mixture in zip(panels, mixtures, strict=True):
        mine = [row for row in chosen if row["mixture"] == mixture]
        experts = list(dict.fromkeys(row["expert"] for row in mine))
        for expert in experts:
            line = [row for row in mine if row["expert"] == expert]
            steps, shares = [int(row["step"]) for row in line], [float(row["share"]) for row in line]
            axes.plot(steps, shares, linewidth=1.2, marker="o", markersize=2.5, label=f"expert {expert}")
        axes.axhline(1.0 / len(experts), color=LIMIT, linestyle="--", linewidth=1.0)
        axes.set_title(f"{title}: {mixture}" if title else mixture)
        _label(axes, "" if axes is not panels[-1] else f"step of {stack}", "share of rows")
        axes.set_ylim(bottom=0)
    if len(experts) <= MOST_NAMED:
        legend_below(figure, *panels[0].get_legend_handles_labels())


def target(figure: Any, rows: Rows, tables: Tables, title: str) -> None:
    """Quality over the stack's own seconds, and over the bytes that a worker has sent; the target as a line."""
    del tables, title
    figure.set_size_inches(8.4, 3.5)
    left, right = figure.subplots(1, 2, sharey=True)
    metric, reach = rows[0]["metric"], rows[0]["reach"]
    scale, unit = bytes_unit(max(float(row["sent_bytes"]) for row in rows))
    marker = "" if metric == "loss" else "o"
    _curves(left, rows, "clock_s", "value", marker=marker)
    _curves(right, rows, "sent_bytes", "value", scale, marker=marker)
    shown = {"loss": "training loss, mean of 10 steps", "val_loss": "loss on held-out data",
             "val_accuracy": "accuracy on held-out data"}.get(metric, metric)  # fmt: skip
    _label(left, "own time of the stack [s]", shown)
    _label(right, f"sent by a worker [{unit}]", "")
    if reach:
        for panel in (left, right):
            panel.axhline(float(reach), color=LIMIT, linestyle=(0, (4, 3)), linewidth=1.1,
                          label=f"target: {metric} {float(reach):g}")  # fmt: skip
    # Payloads differ by orders of magnitude between exact and compressed stacks.
    sent = [float(row["sent_bytes"]) for row in rows if float(row["sent_bytes"]) > 0]
    last = {row["stack"]: float(row["sent_bytes"]) for row in rows}
    if sent and max(last.values()) > 8 * min(value for value in last.values() if value > 0):
        right.set_xscale("log")
        right.set_xlim(left=scale * min(sent))
    legend_below(figure, *left.get_legend_handles_labels())


def _curves(axes: Any, rows: Rows, across: str, column: str, scale: float = 1.0, marker: str = "") -> None:
    shades, named = colours(row["stack"] for row in rows), set[str]()
    for stack, seed in dict.fromkeys((row["stack"], row["seed"]) for row in rows):
        chosen = [row for row in rows if (row["stack"], row["seed"]) == (stack, seed)]
        where, values = [scale * float(row[across]) for row in chosen], [float(row[column]) for row in chosen]
        name = None if stack in named else stack
        axes.plot(where, values, color=shades[stack], linewidth=1.4, marker=marker, markersize=3, label=name)
        named.add(stack)


def _label(axes: Any, across: str, up: str) -> None:
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_xlim(left=0)


def timelines(figure: Any, rows: Rows, tables: Tables, title: str) -> None:
    """A lane a stream for each stack, all over the same seconds; a dark line under what is on the critical path."""
    del tables
    modes = {row["mode"] for row in rows}
    lanes: dict[Lane, float] = {}
    place, last = -0.4, ("", "")
    for lane in dict.fromkeys((row["stack"], row["mode"], row["stream"]) for row in rows):
        place += 1.0 if lane[:2] == last else 1.45  # streams of a stack touch, stacks stand apart
        lanes[lane], last = place, lane[:2]
    figure.set_size_inches(9.6, 1.2 + 0.27 * place)
    axes = figure.subplots()
    scale, unit = unit_of(max(float(row["end_s"]) for row in rows))
    for kind in dict.fromkeys(row["kind"] for row in rows):
        for lane, middle in lanes.items():
            bars = [_bar(row, scale) for row in rows if row["kind"] == kind and _lane(row) == lane]
            # A thin white edge keeps neighbouring collectives apart; thousands of modules would drown in it.
            edge = 0.5 if lane[2].startswith("net.") and len(bars) < 200 else 0.0
            axes.broken_barh(
                bars, (middle - 0.42, 0.84), facecolor=KINDS.get(kind, OTHER), edgecolor="white", linewidth=edge
            )
    for lane, middle in lanes.items():
        marked = _joined([_bar(row, scale) for row in rows if _lane(row) == lane and row.get("critical") == "1"])
        if marked:
            axes.broken_barh(marked, (middle + 0.3, 0.15), facecolor=INK, edgecolor="none", zorder=4)
    axes.set_yticks(list(lanes.values()), [_lane_name(lane, lanes, len(modes) > 1) for lane in lanes])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, scale * max(float(row["end_s"]) for row in rows))
    axes.set_xlabel(f"time [{unit}], {' and '.join(sorted(modes))}; every stack from the start of a forward pass")
    axes.set_title(f"{title}: what runs when" if title else "")
    _kinds_legend(
        figure, list(dict.fromkeys(row["kind"] for row in rows)), any(row.get("critical") == "1" for row in rows)
    )


def _lane(row: Mapping[str, str]) -> Lane:
    return row["stack"], row["mode"], row["stream"]


def _bar(row: Mapping[str, str], scale: float) -> tuple[float, float]:
    start = scale * float(row["start_s"])
    return start, scale * float(row["end_s"]) - start


def _joined(bars: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return bars with those that touch made one: what is drawn as one line is one shape."""
    found: list[tuple[float, float]] = []
    for start, width in sorted(bars):
        if found and math.isclose(found[-1][0] + found[-1][1], start, rel_tol=1e-9, abs_tol=1e-12):
            found[-1] = (found[-1][0], found[-1][1] + width)
        else:
            found.append((start, width))
    return found


def _lane_name(lane: Lane, lanes: Mapping[Lane, float], with_mode: bool) -> str:
    stack, mode, stream = lane
    first = next(other for other in lanes if other[:2] == lane[:2]) == lane
    shown = f"{STREAMS.get(stream, stream):>8}"
    return f"{stack}{f', {mode}' if with_mode else ''}   {shown}" if first else shown


def _kinds_legend(figure: Any, kinds: Sequence[str], critical: bool) -> None:
    from matplotlib.patches import Patch

    known = [Patch(color=colour, label=kind.replace("_", "-")) for kind, colour in KINDS.items() if kind in kinds]
    rest = [kind for kind in kinds if kind not in KINDS]
    others = [Patch(color=OTHER, label=", ".join(rest[:3]))] if rest else []
    path = [Patch(color=INK, label="critical path")] if critical else []
    figure.legend(handles=[*known, *others, *path], loc="outside lower right", ncols=9)
