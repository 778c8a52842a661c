"""How figures look: one colour a stack in all of them, units that can be read, and files that are the same for the same data."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, str]
Rows = Sequence[Row]

INK, PALE, GRID = "#333333", "#8a8a8a", "#e6e6e6"
LIMIT = "#b5483f"  # the ceiling, the target, the diagonal: what cannot or should not be passed
STACKS = ("#6b7785", "#2f7fc1", "#e08214", "#2a9d6f", "#b5483f", "#7d5ba6", "#c2a000", "#3aa6b9", "#a0527a", "#5c7c2f")
KINDS = {
    "forward": "#a6cbe6",
    "backward": "#2f6fa7",
    "update": "#7d5ba6",
    "all_reduce": "#e08214",
    "reduce_scatter": "#f0b43c",
    "all_gather": "#c8501e",
    "all_to_all": "#d96f6f",
}
OTHER = "#8fa37a"
CLASSES = {
    "compute": "#2f6fa7",
    "encode/decode": "#8fa37a",
    "exposed": "#e08214",
    "waiting": "#c9c9c9",
    "overhead": "#7d5ba6",
}
MORE_EXPOSED = ("#e08214", "#f0b43c", "#c8501e")
STYLE: dict[str, Any] = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": PALE, "axes.labelcolor": INK,
    "text.color": INK, "xtick.color": INK, "ytick.color": INK, "axes.titlelocation": "left", "axes.titlesize": 10,
    "svg.hashsalt": "orch", "pdf.fonttype": 42, "hatch.linewidth": 0.6, "legend.frameon": False, "legend.fontsize": 8,
}  # fmt: skip
# Files without a date: the same run gives the same bytes.
METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}


def rows_of(text: str) -> Rows:
    """Return the rows of a CSV text, every value as written."""
    return list(csv.DictReader(io.StringIO(text)))


def number(text: str) -> float | None:
    """Return the number in a cell, None for an empty one."""
    return float(text) if text else None


def unit_of(longest_s: float) -> tuple[float, str]:
    """Return what to multiply seconds by for an axis, and the unit's name."""
    return next(((scale, unit) for scale, unit in ((1.0, "s"), (1e3, "ms")) if longest_s * scale >= 2.0), (1e6, "µs"))


def bytes_unit(most: float) -> tuple[float, str]:
    """Return what to multiply bytes by for an axis, and the unit's name."""
    units = ((2.0**-30, "GiB"), (2.0**-20, "MiB"), (2.0**-10, "KiB"))
    return next(((scale, unit) for scale, unit in units if most * scale >= 2.0), (1.0, "B"))


def bits(bit_per_s: float) -> str:
    """Return a bandwidth as text."""
    for scale, unit in ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bit_per_s >= scale:
            return f"{bit_per_s / scale:.3g} {unit}"
    return f"{bit_per_s:.3g} bit/s"


def colours(names: Iterable[str]) -> dict[str, str]:
    """Return the colour of every stack, by its place among them."""
    return {name: STACKS[place % len(STACKS)] for place, name in enumerate(dict.fromkeys(names))}


def class_colours(names: Iterable[str]) -> dict[str, str]:
    """Return the colour of every class of time, named as people read it."""
    found: dict[str, str] = {}
    streams = 0
    for name in dict.fromkeys(names):
        if name.startswith("exposed"):
            found[name] = MORE_EXPOSED[streams % len(MORE_EXPOSED)]
            streams += 1
        else:
            found[name] = CLASSES.get(name, OTHER)
    return found


def legend_below(figure: Any, handles: Sequence[Any], labels: Sequence[str] | None = None, columns: int = 5) -> None:
    """Put a legend under all axes of a figure."""
    names = [handle.get_label() for handle in handles] if labels is None else labels
    figure.legend(handles, names, loc="outside lower center", ncols=min(columns, max(1, len(names))))
