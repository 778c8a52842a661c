"""Other clusters: more workers, other links. Simulated, except where a run was measured there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orch.report.style import GRID, INK, PALE, Row, Rows, bits, colours, legend_below

Tables = Mapping[str, Rows]
TIE = 0.02  # of the step time: nearer than that, two stacks are called tied
_DARK = ("#6b7785", "#2f7fc1", "#7d5ba6", "#b5483f", "#a0527a", "#5c7c2f")  # on which white is read better
_SIMULATED = {"linestyle": "--", "marker": ""}
_MEASURED = {"linestyle": "-", "marker": "o", "markersize": 6.0}
_STAR: dict[str, Any] = {"marker": "*", "color": "#ffd23f", "markeredgecolor": INK, "linestyle": "none"}


def scaling(figure: Any, rows: Rows, tables: Tables, title: str) -> None:
    """Throughput and efficiency over workers: dashed where simulated, solid with points where measured."""
    del tables, title
    figure.set_size_inches(8.4, 3.8)
    left, right = figure.subplots(1, 2)
    stacks = list(dict.fromkeys(row["stack"] for row in rows))
    shades = colours(stacks)
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    _ideal(left, [row for row in rows if row["stack"] == stacks[0] and row["efficiency"]])
    for stack in stacks:
        for mode in modes:
            mine = sorted((int(row["workers"]), row) for row in rows if row["stack"] == stack and row["mode"] == mode)
            how: dict[str, Any] = dict(
                _SIMULATED if mode == "simulated" else _MEASURED, color=shades[stack], linewidth=1.4
            )
            label = stack if mode == modes[0] else None
            left.plot([x for x, _ in mine], [float(row["samples_per_s"]) for _, row in mine], label=label, **how)
            known = [(x, 100 * float(row["efficiency"])) for x, row in mine if row["efficiency"]]
            right.plot([x for x, _ in known], [y for _, y in known], **how)
    for panel in (left, right):
        panel.set_xscale("log", base=2)
        sizes = sorted({int(row["workers"]) for row in rows})
        panel.set_xticks(sizes, [str(size) for size in sizes], fontsize=8)
        panel.minorticks_off()
        panel.set_xlabel("workers")
        panel.grid(color=GRID, linewidth=0.7)
    left.set_yscale("log")
    left.set_ylabel("samples a second, all workers")
    right.set_ylim(0, 108)
    right.set_ylabel("efficiency [%]")
    _modes_legend(figure, left, modes)


def _ideal(axes: Any, rows: Rows) -> None:
    points = sorted((int(row["workers"]), float(row["samples_per_s"]) / float(row["efficiency"])) for row in rows)
    if points:
        sizes, speeds = [x for x, _ in points], [y for _, y in points]
        axes.plot(sizes, speeds, color=PALE, linewidth=1.0, linestyle=":", label="one worker, times n")


def _modes_legend(figure: Any, axes: Any, modes: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    handles, labels = axes.get_legend_handles_labels()
    for mode in modes if len(modes) > 1 else ():
        how: dict[str, Any] = dict(_SIMULATED if mode == "simulated" else _MEASURED)
        handles.append(Line2D([], [], color=INK, linewidth=1.2, **how))
        labels.append(mode)
    legend_below(figure, handles, labels, columns=6)


def regime(figure: Any, rows: Rows, tables: Tables, title: str) -> None:
    """Bandwidth by workers: the fastest stack of each cell, hatched where another is as good; a star on the own cluster."""
    del tables, title
    stacks = list(dict.fromkeys(row["stack"] for row in rows))
    sizes = sorted({int(row["workers"]) for row in rows})
    factors = sorted({float(row["factor"]) for row in rows})
    times: dict[tuple[int, float], dict[str, float]] = {}
    for row in rows:
        times.setdefault((int(row["workers"]), float(row["factor"])), {})[row["stack"]] = float(row["step_time_s"])
    figure.set_size_inches(max(5.4, 2.4 + 0.72 * len(sizes)), 1.9 + 0.4 * len(factors))
    axes = figure.subplots()
    shades = colours(stacks)
    winners = [
        _cell(axes, (sizes.index(size), factors.index(factor)), found, stacks[0], shades)
        for (size, factor), found in times.items()
    ]
    own = next(((int(row["workers"]), float(row["factor"])) for row in rows if row["own"] == "1"), None)
    if own is not None:
        axes.plot(sizes.index(own[0]), factors.index(own[1]) + 0.17, markersize=15, **_STAR)
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.set_ylim(-0.5, len(factors) - 0.5)
    axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axes.set_yticks(range(len(factors)), [_speed(rows, factor) for factor in factors])
    axes.tick_params(length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel("workers, simulated")
    axes.set_ylabel("bandwidth of the link")
    _cells_legend(figure, {name: shades[name] for name in stacks if name in winners}, starred=own is not None)


def _cell(axes: Any, at: tuple[int, int], found: Mapping[str, float], base: str, shades: Mapping[str, str]) -> str:
    """Draw one cell and return its best stack."""
    from matplotlib.patches import Rectangle

    order = sorted(found, key=lambda name: found[name])
    best = order[0]
    tied = len(order) > 1 and found[order[1]] <= (1 + TIE) * found[best]
    corner = (at[0] - 0.5, at[1] - 0.5)
    face: dict[str, Any] = {
        "facecolor": shades[best],
        "edgecolor": "white",
        "linewidth": 1.0,
        "alpha": 0.4 if tied else 0.88,
    }
    axes.add_patch(Rectangle(corner, 1, 1, **face))
    if tied:
        axes.add_patch(Rectangle(corner, 1, 1, facecolor="none", edgecolor="white", hatch="///", linewidth=0))
    if base in found:
        colour = "white" if shades[best] in _DARK and not tied else INK
        gain = f"{found[base] / found[best]:.2f}"
        axes.text(at[0], at[1] - 0.24, gain, ha="center", va="center", fontsize=7.5, color=colour)
    return best


def _speed(rows: Sequence[Row], factor: float) -> str:
    known = next(row["bit_per_s"] for row in rows if float(row["factor"]) == factor)
    return bits(float(known)) if known else f"{factor:g}×"


def _cells_legend(figure: Any, shades: Mapping[str, str], *, starred: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(color=shade, alpha=0.88, label=name) for name, shade in shades.items()]
    handles.append(Patch(facecolor="#cccccc", edgecolor="white", hatch="///", label=f"tied (within {100 * TIE:.0f} %)"))
    if starred:
        handles.append(Line2D([], [], markersize=12, label="this cluster", **_STAR))
    legend_below(figure, handles, columns=4)
