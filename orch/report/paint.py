"""Bars and points: step times, gains, where the time goes, what it costs, and whether it was foretold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orch.experiment.breakdown import title as class_title
from orch.report.style import (
    GRID,
    INK,
    LIMIT,
    PALE,
    Row,
    Rows,
    bytes_unit,
    class_colours,
    colours,
    legend_below,
    number,
    unit_of,
)  # fmt: skip

Tables = Mapping[str, Rows]
_NEAR = 0.15  # the band of the figure of predictions


def step_time(figure: Any, rows: Rows, tables: Tables, title: str) -> None:
    """Bars of step time with their intervals, what was predicted, and the ceiling."""
    del tables
    figure.set_size_inches(7.6, 1.3 + 0.42 * len(rows))
    axes = figure.subplots()
    scale, unit = unit_of(max(float(row["median_s"]) for row in rows))
    mode, shades = rows[0]["mode"], colours(row["stack"] for row in rows)
    ends = []
    for place, row in enumerate(rows):
        middle = scale * float(row["median_s"])
        axes.barh(place, middle, height=0.62, color=shades[row["stack"]], zorder=2)
        low, high = (number(row[key]) for key in ("lo_s", "hi_s"))
        end = middle
        if low is not None and high is not None:
            end = _interval(axes, place, middle, scale * low, scale * high)
        if mode != "simulated":
            predicted = scale * float(row["predicted_s"])
            axes.plot(
                predicted, place, marker="D", markersize=5, color="white", markeredgecolor=INK, zorder=5, linestyle="none",
                label="predicted" if place == 0 else None,
            )  # fmt: skip
            end = max(end, predicted)
        ends.append(end)
    ceiling = scale * float(rows[0]["ceiling_s"])
    axes.axvline(ceiling, color=LIMIT, linestyle=(0, (4, 3)), linewidth=1.1, zorder=3, label="communication free")
    room = max([*ends, ceiling])
    for place, row in enumerate(rows):
        axes.text(ends[place] + 0.015 * room, place, _gain(row, place == 0), va="center", fontsize=8, color=INK)
    _named_bars(axes, [row["stack"] for row in rows])
    axes.set_xlim(0, 1.3 * room)
    axes.set_xlabel(f"step time [{unit}], {mode}")
    axes.set_title(f"{title}: step time and gain" if title else "step time and gain")
    figure.legend(loc="outside lower right", ncols=2)


def _interval(axes: Any, place: float, middle: float, low: float, high: float) -> float:
    low, high = min(low, middle), max(high, middle)
    bar = [[middle - low], [high - middle]]
    axes.errorbar(middle, place, xerr=bar, color=INK, capsize=3, elinewidth=1.1, zorder=4)
    return high


def _named_bars(axes: Any, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()


def _gain(row: Row, first: bool) -> str:
    middle, low, high = (number(row[key]) for key in ("gain", "gain_lo", "gain_hi"))
    if middle is None or (first and middle == 1.0):
        return ""
    if low is None or high is None:  # a prediction has no interval; one block of a measurement cannot have one
        return f"{middle:.2f}×" if row["mode"] == "simulated" else "not distinguishable"
    return f"{middle:.2f}× [{low:.2f}, {high:.2f}]" if not low <= 1.0 <= high else "not distinguishable"


def speedup(figure: Any, rows: Rows, tables: Tables, title: str) -> None:
    """Bars of gain over the baseline, from 1 to both sides; a tick where the same stack would be with communication free."""
    del tables, title
    figure.set_size_inches(7.6, 1.35 + 0.46 * len(rows))
    axes = figure.subplots()
    shades = colours(row["stack"] for row in rows)
    mode = rows[0]["mode"]
    ends, lows = [], [1.0]
    for place, row in enumerate(rows):
        gain = float(row["gain"])
        pale = row["distinguishable"] == "False"
        axes.barh(
            place, gain - 1.0, left=1.0, height=0.6, color=shades[row["stack"]], alpha=0.4 if pale else 1.0, zorder=2
        )
        low, high, limit = (number(row[key]) for key in ("lo", "hi", "ceiling_gain"))
        end = max(gain, 1.0)
        if low is not None and high is not None:
            end = max(end, _interval(axes, place, gain, low, high))
            lows.append(low)
        if limit is not None:
            axes.plot([limit, limit], [place - 0.38, place + 0.38], color=LIMIT, linewidth=2.0, zorder=5,
                      label="ceiling: communication free" if place == 0 else None)  # fmt: skip
            end = max(end, limit)
        ends.append(end)
        lows.append(gain)
    left, right = min(lows), max(ends)
    room = right - left
    for place, row in enumerate(rows):
        axes.text(ends[place] + 0.02 * room, place, _said(row), va="center", fontsize=8.5, color=INK)
    axes.axvline(1.0, color=INK, linewidth=1.0, zorder=3)
    _named_bars(axes, [row["stack"] for row in rows])
    axes.set_xlim(max(0.0, left - 0.04 * room), right + 0.38 * room)
    axes.set_xlabel(f"times as fast as {rows[0]['stack']}, {mode}")
    axes.xaxis.grid(True, color=GRID, linewidth=0.7, zorder=0)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower right")


def _said(row: Row) -> str:
    low, high = number(row["lo"]), number(row["hi"])
    lossy = "" if row["lossless"] == "True" else ", lossy"
    if float(row["gain"]) == 1.0 and low is None:
        return "baseline" + lossy
    if row["distinguishable"] == "False":
        return "not distinguishable" + lossy
    if low is None or high is None:
        return f"{float(row['gain']):.2f}×{lossy}"
    return f"{float(row['gain']):.2f}× [{low:.2f}, {high:.2f}]{lossy}"


def breakdown(figure: Any, rows: Rows, tables: Tables, title: str) -> None:
    """Stacked bars: where the time of a step goes, by class."""
    del tables, title
    stacks = list(dict.fromkeys(row["stack"] for row in rows))
    classes = list(dict.fromkeys(row["class"] for row in rows))
    seconds = {(row["stack"], row["class"]): float(row["seconds_a_step"]) for row in rows}
    whole = {stack: sum(seconds.get((stack, name), 0.0) for name in classes) for stack in stacks}
    scale, unit = unit_of(max(whole.values()))
    figure.set_size_inches(7.6, 1.35 + 0.44 * len(stacks))
    axes = figure.subplots()
    shown = [name for name in classes if any(seconds.get((s, name), 0.0) > 0.002 * whole[s] for s in stacks)]
    shades = class_colours(class_title(name) for name in shown)
    left = [0.0] * len(stacks)
    for name in shown:
        widths = [scale * seconds.get((stack, name), 0.0) for stack in stacks]
        label = class_title(name)
        axes.barh(range(len(stacks)), widths, left=left, height=0.62, color=shades[label], label=label,
                  edgecolor="white", linewidth=0.6)  # fmt: skip
        for place, (start, width) in enumerate(zip(left, widths, strict=True)):
            if width > 0.07 * scale * max(whole.values()):
                dark = shades[label] in ("#2f6fa7", "#7d5ba6", "#c8501e")
                axes.text(start + width / 2, place, f"{width:.3g}", ha="center", va="center", fontsize=8,
                          color="white" if dark else INK)  # fmt: skip
        left = [start + width for start, width in zip(left, widths, strict=True)]
    _named_bars(axes, stacks)
    axes.set_xlabel(f"time of a step [{unit}], {rows[0]['mode']}")
    legend_below(figure, axes.get_legend_handles_labels()[0])


def pareto(figure: Any, rows: Rows, tables: Tables, title: str) -> None:
    """Step time against cost; a line joins the stacks that no other beats in both."""
    del tables, title
    figure.set_size_inches(5.6, 3.9)
    axes = figure.subplots()
    scale, unit = unit_of(max(float(row["step_time_s"]) for row in rows))
    shades = colours(row["stack"] for row in rows)
    wire = rows[0]["cost"] != "loss"
    up, high_unit = bytes_unit(max(float(row["value"]) for row in rows)) if wire else (1.0, "")
    points = [(scale * float(row["step_time_s"]), up * float(row["value"]), row) for row in rows]
    front = sorted((x, y) for x, y, row in points if row["front"] == "1")
    if len(front) > 1:
        axes.plot([x for x, _ in front], [y for _, y in front], color=PALE, linewidth=1.0, linestyle="--", zorder=1,
                  drawstyle="steps-post", label="no other is better in both")  # fmt: skip
    for x, y, row in points:
        best = row["front"] == "1"
        axes.plot(x, y, marker="o", markersize=8, color=shades[row["stack"]], linestyle="none", zorder=3, clip_on=False,
                  markerfacecolor=shades[row["stack"]] if best else "white", label=row["stack"])  # fmt: skip
    axes.margins(0.12)
    if wire:
        axes.set_ylim(bottom=0)
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_xlabel(f"step time [{unit}], {rows[0]['mode']}")
    axes.set_ylabel(
        f"bytes on the wire, a worker, a step [{high_unit}]" if wire else "training loss after the same steps"
    )
    handles, labels = axes.get_legend_handles_labels()
    legend_below(figure, handles, labels, columns=3)


def prediction(figure: Any, rows: Rows, tables: Tables, title: str) -> None:
    """Predicted over measured: each stack's step, and where in the step the difference is."""
    del tables, title
    steps = [row for row in rows if row["what"] == "step"]
    parts = [row for row in rows if row["what"] != "step"]
    figure.set_size_inches(8.4 if parts else 4.4, 4.6)
    panels = figure.subplots(1, 2 if parts else 1, squeeze=False)[0]
    shades = colours(row["stack"] for row in rows)
    _scatter(panels[0], steps, [shades[row["stack"]] for row in steps], [row["stack"] for row in steps])
    panels[0].set_title("a step")
    if parts:
        kept = [row for row in parts if max(float(row["measured_s"]), float(row["predicted_s"])) > 0]
        by_class = class_colours(class_title(row["what"]) for row in parts)
        names = [class_title(row["what"]) for row in kept]
        _scatter(panels[1], kept, [by_class[name] for name in names], names)
        panels[1].set_title("classes of time in it")
    for panel in panels:
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)


def _scatter(axes: Any, rows: Rows, shades: Sequence[str], names: Sequence[str]) -> None:
    most = max(max(float(row["measured_s"]), float(row["predicted_s"])) for row in rows)
    scale, unit = unit_of(most)
    end = 1.08 * scale * most
    axes.fill_between(
        [0, end], [0, (1 - _NEAR) * end], [0, (1 + _NEAR) * end], color=GRID, zorder=0, label="within 15 %"
    )
    axes.plot([0, end], [0, end], color=LIMIT, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1, label="as predicted")
    seen: set[str] = set()
    for row, shade, name in zip(rows, shades, names, strict=True):
        axes.plot(scale * float(row["measured_s"]), scale * float(row["predicted_s"]), marker="o", markersize=6.5, color=shade,
                  linestyle="none", markeredgecolor="white", zorder=3, label=None if name in seen else name)  # fmt: skip
        seen.add(name)
    axes.set_xlim(0, end)
    axes.set_ylim(0, end)
    axes.set_aspect("equal")
    axes.set_xlabel(f"measured [{unit}]")
    axes.set_ylabel(f"predicted [{unit}]")
