"""Draw the figures of a run from their CSV files. matplotlib (extra `run`) is loaded when something is drawn.

Nothing here is needed for a result: what cannot be drawn is left out, and the CSV stays.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Rows = Sequence[Mapping[str, str]]

INK, PALE = "#333333", "#8a8a8a"
STACKS = ("#6b7785", "#2f7fc1", "#e08214", "#2a9d6f", "#b5483f", "#7d5ba6", "#c2a000", "#3aa6b9", "#a0527a", "#5c7c2f")
KINDS = {
    "forward": "#a6cbe6",
    "backward": "#2f6fa7",
    "update": "#7d5ba6",
    "all_reduce": "#e08214",
    "reduce_scatter": "#f0b43c",
    "all_gather": "#c8501e",
}
OTHER = "#8fa37a"
STREAMS = {"compute": "compute", "net.inter": "network", "net.intra": "network", "host": "host"}
STYLE = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": PALE, "axes.labelcolor": INK,
    "text.color": INK, "xtick.color": INK, "ytick.color": INK, "axes.titlelocation": "left", "axes.titlesize": 10,
    "svg.hashsalt": "orch",
}  # fmt: skip


def draw(folder: Path, title: str = "") -> list[Path]:
    """Draw every figure whose CSV lies in `folder`; return the files written, none where matplotlib is not installed.

    Raises OSError where they cannot be written.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        return []
    written: list[Path] = []
    with matplotlib.rc_context(STYLE):
        for name, painter in PAINTERS.items():
            if (folder / f"{name}.csv").exists() and (rows := _read(folder / f"{name}.csv")):
                figure = Figure(layout="constrained")
                painter(figure, rows, folder, title)
                for kind in ("png", "pdf") if name == "step_time" else ("png",):
                    path = folder / f"{name}.{kind}"
                    figure.savefig(path, dpi=160, facecolor="white")
                    written.append(path)
    return written


def _read(path: Path) -> Rows:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _number(text: str) -> float | None:
    return float(text) if text else None


def _unit(longest_s: float) -> tuple[float, str]:
    """Return what to multiply seconds by for an axis, and the unit's name."""
    return next(((scale, unit) for scale, unit in ((1.0, "s"), (1e3, "ms")) if longest_s * scale >= 2.0), (1e6, "µs"))


def _colours(rows: Rows) -> dict[str, str]:
    names = list(dict.fromkeys(row["stack"] for row in rows))
    return {name: STACKS[number % len(STACKS)] for number, name in enumerate(names)}


def _step_time(figure: Any, rows: Rows, folder: Path, title: str) -> None:
    """Bars of step time with their intervals, what was predicted, and the ceiling."""
    del folder
    figure.set_size_inches(7.6, 1.3 + 0.42 * len(rows))
    axes = figure.subplots()
    scale, unit = _unit(max(float(row["median_s"]) for row in rows))
    mode, colours = rows[0]["mode"], _colours(rows)
    ends = []
    for place, row in enumerate(rows):
        middle = scale * float(row["median_s"])
        axes.barh(place, middle, height=0.62, color=colours[row["stack"]], zorder=2)
        low, high = (_number(row[key]) for key in ("lo_s", "hi_s"))
        end = middle
        if low is not None and high is not None:
            low, high = min(scale * low, middle), max(scale * high, middle)
            bar = [[middle - low], [high - middle]]
            axes.errorbar(middle, place, xerr=bar, color=INK, capsize=3, elinewidth=1.1, zorder=4)
            end = high
        if mode != "simulated":
            predicted = scale * float(row["predicted_s"])
            axes.plot(
                predicted, place, marker="D", markersize=5, color="white", markeredgecolor=INK, zorder=5, linestyle="none",
                label="predicted" if place == 0 else None,
            )  # fmt: skip
            end = max(end, predicted)
        ends.append(end)
    ceiling = scale * float(rows[0]["ceiling_s"])
    axes.axvline(ceiling, color="#b5483f", linestyle=(0, (4, 3)), linewidth=1.1, zorder=3, label="communication free")
    room = max([*ends, ceiling])
    for place, row in enumerate(rows):
        axes.text(ends[place] + 0.015 * room, place, _gain(row, place == 0), va="center", fontsize=8, color=INK)
    axes.set_yticks(range(len(rows)), [row["stack"] for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.3 * room)
    axes.set_xlabel(f"step time [{unit}], {mode}")
    axes.set_title(f"{title}: step time and gain" if title else "step time and gain")
    figure.legend(loc="outside lower right", ncols=2, frameon=False, fontsize=8)


def _gain(row: Mapping[str, str], first: bool) -> str:
    middle, low, high = (_number(row[key]) for key in ("gain", "gain_lo", "gain_hi"))
    if middle is None or (first and middle == 1.0):
        return ""
    if low is None or high is None:  # a prediction has no interval; one block of a measurement cannot have one
        return f"{middle:.2f}×" if row["mode"] == "simulated" else "not distinguishable"
    return f"{middle:.2f}× [{low:.2f}, {high:.2f}]" if not low <= 1.0 <= high else "not distinguishable"


def _loss(figure: Any, rows: Rows, folder: Path, title: str) -> None:
    """Loss over each stack's own clock, and accuracy on held-out data beside it."""
    judged = _read(folder / "accuracy.csv") if (folder / "accuracy.csv").exists() else []
    figure.set_size_inches(8.4, 3.4)
    panels = figure.subplots(1, 2 if judged else 1, squeeze=False)[0]
    _curves(panels[0], rows, "mean_of_last", "training loss, mean of 10 steps")
    if judged:
        _curves(panels[1], judged, "val_accuracy", "accuracy on held-out data", marker="o")
    panels[0].set_title(f"{title}: training" if title else "training")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)), frameon=False, fontsize=8)


def _curves(axes: Any, rows: Rows, column: str, label: str, marker: str = "") -> None:
    colours, named = _colours(rows), set[str]()
    for stack, seed in dict.fromkeys((row["stack"], row["seed"]) for row in rows):
        chosen = [row for row in rows if (row["stack"], row["seed"]) == (stack, seed)]
        clock, values = [float(row["clock_s"]) for row in chosen], [float(row[column]) for row in chosen]
        name = None if stack in named else stack
        axes.plot(clock, values, color=colours[stack], linewidth=1.4, marker=marker, markersize=3, label=name)
        named.add(stack)
    axes.set_xlabel("own time of the stack [s]")
    axes.set_ylabel(label)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    axes.set_xlim(left=0)


def _timelines(figure: Any, rows: Rows, folder: Path, title: str) -> None:
    """A lane a stream for each stack, all over the same seconds."""
    del folder
    lanes: dict[tuple[str, str], int] = {}
    for row in rows:
        lanes.setdefault((row["stack"], row["stream"]), 0)
    # Streams of a stack touch, stacks stand apart.
    place, last = -0.4, ""
    for stack, stream in lanes:
        place += 1.0 if stack == last else 1.4
        lanes[stack, stream], last = place, stack  # type: ignore[assignment]
    figure.set_size_inches(9.6, 1.2 + 0.27 * place)
    axes = figure.subplots()
    scale, unit = _unit(max(float(row["end_s"]) for row in rows))
    for kind in dict.fromkeys(row["kind"] for row in rows):
        for lane, place in lanes.items():
            bars = [
                (scale * float(row["start_s"]), scale * (float(row["end_s"]) - float(row["start_s"])))
                for row in rows
                if row["kind"] == kind and (row["stack"], row["stream"]) == lane
            ]
            # A thin white edge keeps neighbouring collectives apart; thousands of modules would drown in it.
            edge = 0.5 if lane[1].startswith("net.") else 0.0
            colour = KINDS.get(kind, OTHER)
            axes.broken_barh(bars, (place - 0.42, 0.84), facecolor=colour, edgecolor="white", linewidth=edge)
    axes.set_yticks(list(lanes.values()), [_lane(*lane, lanes) for lane in lanes])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, scale * max(float(row["end_s"]) for row in rows))
    axes.set_xlabel(f"time [{unit}], {rows[0]['mode']}; every stack from the start of a forward pass")
    axes.set_title(f"{title}: what runs when" if title else "what runs when")
    _kinds_legend(figure, list(dict.fromkeys(row["kind"] for row in rows)))


def _lane(stack: str, stream: str, lanes: Mapping[tuple[str, str], int]) -> str:
    first = next(lane for lane in lanes if lane[0] == stack) == (stack, stream)
    shown = f"{STREAMS.get(stream, stream):>8}"
    return f"{stack}   {shown}" if first else shown


def _kinds_legend(figure: Any, kinds: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    known = [Patch(color=colour, label=kind.replace("_", "-")) for kind, colour in KINDS.items() if kind in kinds]
    rest = [kind for kind in kinds if kind not in KINDS]
    others = [Patch(color=OTHER, label=", ".join(rest[:3]))] if rest else []
    figure.legend(handles=[*known, *others], loc="outside lower right", ncols=8, frameon=False, fontsize=8)


PAINTERS: dict[str, Callable[[Any, Rows, Path, str], None]] = {
    "step_time": _step_time,
    "loss": _loss,
    "timelines": _timelines,
}
