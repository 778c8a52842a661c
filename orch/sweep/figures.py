"""The figures of a sweep as data: history, importance, parallel coordinates, Pareto front, agreement; drawn from their CSV.

Importance is the share of the variance of the objective that one setting's value explains by itself, among the trials
in which it was varied: eta squared of a one-way analysis, ranges cut into four parts of equal count.
"""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from orch.report.style import INK, PALE, STACKS, STYLE
from orch.sweep.metrics import shown
from orch.units import format_bytes

Document = Mapping[str, Any]
_PARTS = 4
_LEAST = 4
# An axis over more than this is logarithmic.
WIDE = 5.0
# Height of a label, as a share of an axis.
_LABEL = 0.05


def texts(found: Document) -> dict[str, str]:
    """Return the CSV of every figure of a sweep that has something to show, by name."""
    trials = [trial for trial in found["trials"] if trial["state"] == "complete"]
    if not trials:
        return {}
    made = {"history": _history(found), "parallel": _parallel(found, trials)}
    if shares := importance(found):
        made["importance"] = [["setting", "share", "trials"], *([p, f"{v:.6g}", n] for p, (v, n) in shares.items())]
    if "pareto" in found:
        names = list(found["objectives"])[:2]
        front = set(found["pareto"])
        rows = [[t["number"], *(t["values"][name] for name in names), int(t["number"] in front)] for t in trials]
        made["pareto"] = [["trial", *names, "front"], *rows]
    if (agreed := found.get("agreement")) is not None:
        rows = [[pair["number"], pair["predicted"], pair["measured"]] for pair in agreed["trials"]]
        made["agreement"] = [["trial", f"predicted {agreed['objective']}", f"measured {agreed['objective']}"], *rows]
    return {name: _csv(rows) for name, rows in made.items()}


def _history(found: Document) -> list[list[Any]]:
    """Return the first objective and the best so far, a row a trial in order of number."""
    name, direction = next(iter(found["objectives"].items()))
    better = max if direction == "maximize" else min
    rows: list[list[Any]] = [["trial", "state", name, "best", "mode"]]
    best: float | None = None
    for trial in found["trials"]:
        value = trial["values"][name] if trial["state"] == "complete" else None
        if value is not None:
            best = value if best is None else better(best, value)
        rows.append([trial["number"], trial["state"], value, best, trial["mode"]])
    return rows


def _parallel(found: Document, trials: Sequence[Document]) -> list[list[Any]]:
    name = next(iter(found["objectives"]))
    paths = list(dict.fromkeys(path for trial in trials for path in trial["params"]))
    return [
        ["trial", name, *paths],
        *([t["number"], t["values"][name], *(t["params"].get(p) for p in paths)] for t in trials),
    ]


def importance(found: Document) -> dict[str, tuple[float, int]]:
    """Return, for every setting that took several values, (share of variance explained, trials), largest first."""
    name = next(iter(found["objectives"]))
    trials = [trial for trial in found["trials"] if trial["state"] == "complete" and trial.get("same_as") is None]
    paths = dict.fromkeys(path for trial in trials for path in trial["params"])
    shares: dict[str, tuple[float, int]] = {}
    for path in paths:
        pairs = [(trial["params"][path], float(trial["values"][name])) for trial in trials if path in trial["params"]]
        share = _explained(pairs)
        if share is not None:
            shares[path] = (share, len(pairs))
    return dict(sorted(shares.items(), key=lambda item: -item[1][0]))


def _explained(pairs: Sequence[tuple[Any, float]]) -> float | None:
    groups: dict[Any, list[float]] = defaultdict(list)
    for group, value in zip(_groups([value for value, _ in pairs]), (value for _, value in pairs), strict=True):
        groups[group].append(value)
    if len(pairs) < _LEAST or len(groups) < 2:
        return None
    mean = fmean(value for _, value in pairs)
    total = sum((value - mean) ** 2 for _, value in pairs)
    between = sum(len(group) * (fmean(group) - mean) ** 2 for group in groups.values())
    return between / total if total else None


def _groups(values: Sequence[Any]) -> list[Any]:
    """Return the group of each value: itself for choices, its quarter for numbers of which there are many."""
    numbers = [number_of(value) for value in values]
    if any(number is None for number in numbers) or len(set(map(str, values))) <= _PARTS + 2:
        return [str(value) for value in values]
    order = sorted(range(len(values)), key=lambda index: (numbers[index], index))
    rank = {index: place for place, index in enumerate(order)}
    return [rank[index] * _PARTS // len(values) for index in range(len(values))]


def number_of(value: Any) -> float | None:
    """Return a setting as a number, without its unit; None for what is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value)
    if not isinstance(value, str):
        return None
    try:
        return float(value.rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz/"))
    except ValueError:
        return None


def _csv(rows: Sequence[Sequence[Any]]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([["" if cell is None else cell for cell in row] for row in rows])
    return stream.getvalue()


# ---- pictures


def draw(folder: Path, title: str) -> list[Path]:
    """Draw every figure of a sweep whose CSV lies in `folder`; none where matplotlib is not installed. Raises OSError."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        return []
    written = []
    with matplotlib.rc_context(STYLE):
        for name, painter in {"history": _draw_history, "importance": _draw_importance, "parallel": _draw_parallel,
                              "pareto": _draw_pareto, "agreement": _draw_agreement}.items():  # fmt: skip
            path = folder / f"{name}.csv"
            if path.exists():
                with path.open(encoding="utf-8", newline="") as file:
                    rows = list(csv.DictReader(file))
                figure = Figure(layout="constrained")
                painter(figure, rows, title)
                written.append(folder / f"{name}.png")
                figure.savefig(written[-1], dpi=160, facecolor="white")
    return written


def _draw_history(figure: Any, rows: Sequence[Mapping[str, str]], title: str) -> None:
    name = list(rows[0])[2]
    figure.set_size_inches(7.6, 3.4)
    axes = figure.subplots()
    done = [(int(row["trial"]), float(row[name])) for row in rows if row[name]]
    axes.plot(*zip(*done, strict=True), ".", color=PALE, label="trial", zorder=2)
    best = [(int(row["trial"]), float(row["best"])) for row in rows if row["best"]]
    axes.step(*zip(*best, strict=True), where="post", color=STACKS[1], label="best so far", zorder=3)
    _measure(axes.yaxis, name, [value for _, value in done])
    odd = [int(row["trial"]) for row in rows if row["state"] in ("pruned", "infeasible", "failed")]
    if odd:
        low = axes.get_ylim()[0]
        axes.plot(odd, [low] * len(odd), "|", color=STACKS[4], label="pruned, infeasible or failed", clip_on=False)
    mode = next((row["mode"] for row in rows if row["mode"]), "")
    axes.set_xlabel("trial")
    axes.set_ylabel(f"{words(name)}, {mode}")
    axes.set_title(f"{title}: history")
    axes.legend(frameon=False, fontsize=8)


def _draw_importance(figure: Any, rows: Sequence[Mapping[str, str]], title: str) -> None:
    figure.set_size_inches(7.6, 1.2 + 0.36 * len(rows))
    axes = figure.subplots()
    shares = [100 * float(row["share"]) for row in rows]
    axes.barh(range(len(rows)), shares, height=0.6, color=STACKS[1])
    for place, (row, share) in enumerate(zip(rows, shares, strict=True)):
        axes.text(share + 1, place, f"{share:.0f} % of {row['trials']} trials", va="center", fontsize=8, color=INK)
    axes.set_yticks(range(len(rows)), [row["setting"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 125)
    axes.set_xticks(range(0, 101, 25))
    axes.set_xlabel("share of the variance that the setting alone explains [%]")
    axes.set_title(f"{title}: importance")


def _draw_parallel(figure: Any, rows: Sequence[Mapping[str, str]], title: str) -> None:
    """A line a trial over an axis a setting, the objective on the right; dotted past settings that a trial does not have."""
    from matplotlib import colormaps

    name, *paths = list(rows[0])[1:]
    columns = [*paths, name]
    figure.set_size_inches(max(6.0, 1.9 * len(columns)), 4.2)
    axes = figure.subplots()
    places: list[dict[str, float]] = []
    for column in columns:
        values = [row[column] for row in rows if row[column] != ""]
        numbers = {value: number_of(_typed(value)) for value in values}
        if all(number is not None for number in numbers.values()):
            low, high = min(numbers.values()), max(numbers.values())  # type: ignore[type-var]
            places.append({value: (number - low) / (high - low or 1.0) for value, number in numbers.items()})  # type: ignore
        else:
            kinds = sorted(set(values))
            places.append({value: index / max(1, len(kinds) - 1) for index, value in enumerate(kinds)})
        for value, place in apart(places[-1]).items():
            text = shown(name, float(value)) if column == name else _short(value)
            axes.text(len(places) - 1.03, place, text, fontsize=7, color=INK, ha="right", va="center")
    colours = colormaps["viridis"]
    for row in rows:
        points = [(index, places[index][row[column]]) for index, column in enumerate(columns) if row[column] != ""]
        look = {"color": colours(places[-1][row[name]]), "linewidth": 0.9, "alpha": 0.6, "marker": "."}
        for left, right in pairwise(points):
            axes.plot(*zip(left, right, strict=True), **look, linestyle="-" if right[0] - left[0] == 1 else ":")
    for index in range(len(columns)):
        axes.axvline(index, color=PALE, linewidth=0.8, zorder=0)
    labels = [*(path.replace("techniques.", "") for path in paths), words(name)]
    axes.set_xticks(range(len(columns)), labels, fontsize=8)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlim(-0.5, len(columns) - 0.8)
    axes.set_title(f"{title}: trials, coloured by {words(name)}")


def apart(places: Mapping[str, float]) -> dict[str, float]:
    """Return those of the values along an axis whose labels do not meet, the two ends among them."""
    order = sorted(places, key=places.__getitem__)
    kept = order[:1]
    for value in order[1:-1]:
        if min(places[value] - places[kept[-1]], places[order[-1]] - places[value]) >= _LABEL:
            kept.append(value)
    return {value: places[value] for value in dict.fromkeys([*kept, *order[-1:]])}


def _draw_pareto(figure: Any, rows: Sequence[Mapping[str, str]], title: str) -> None:
    _, across, up, _ = rows[0]
    figure.set_size_inches(5.6, 4.2)
    axes = figure.subplots()
    for front, colour, label in (("0", PALE, "dominated"), ("1", STACKS[1], "front")):
        points = sorted((float(row[across]), float(row[up])) for row in rows if row["front"] == front)
        if points:
            axes.plot(
                *zip(*points, strict=True), "o-" if front == "1" else "o", color=colour, label=label, markersize=4
            )
    _measure(axes.xaxis, across, [float(row[across]) for row in rows])
    _measure(axes.yaxis, up, [float(row[up]) for row in rows])
    axes.set_xlabel(words(across))
    axes.set_ylabel(words(up))
    axes.set_title(f"{title}: Pareto front of {len(rows)} trials")
    axes.legend(frameon=False, fontsize=8)


def _draw_agreement(figure: Any, rows: Sequence[Mapping[str, str]], title: str) -> None:
    """Predicted against measured, a dot a trial; on the line both are the same."""
    _, across, up = rows[0]
    figure.set_size_inches(4.6, 4.2)
    axes = figure.subplots()
    points = [(float(row[across]), float(row[up])) for row in rows]
    low, high = (pick(value for point in points for value in point) for pick in (min, max))
    spare = 0.08 * (high - low) or 0.08 * abs(high) or 1.0
    axes.plot([low - spare, high + spare], [low - spare, high + spare], color=PALE, linewidth=0.9, zorder=0)
    axes.plot(*zip(*points, strict=True), "o", color=STACKS[1], markersize=4)
    for row, point in zip(rows, points, strict=True):
        axes.annotate(row["trial"], point, textcoords="offset points", xytext=(4, 3), fontsize=7, color=INK)
    axes.set_xlim(low - spare, high + spare)
    axes.set_ylim(low - spare, high + spare)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_title(f"{title}: prediction and measurement")


def words(name: str) -> str:
    """Return a metric's key in JSON as words; its unit stands at the numbers."""
    return re.sub("_(samples_per_s|bytes|s)$", "", name).replace("_", " ")


def _measure(axis: Any, name: str, values: Sequence[float]) -> None:
    """Give an axis the scale of its values, and numbers with their unit: `20 ms` rather than a power of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    scale = _scale(values)
    axis.axes.set(**{f"{axis.axis_name}scale": scale})
    if scale == "log":
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: shown(name, value)))


def _scale(values: Sequence[float]) -> str:
    """Return the scale of an axis: beside a few trials that are many times slower the others would be one line."""
    return "log" if 0 < WIDE * min(values) < max(values) else "linear"


def _typed(text: str) -> Any:
    return text if text not in ("True", "False") else None


def _short(text: str) -> str:
    number = number_of(text)
    if number is not None and text.endswith("B") and text[:-1].isdigit():
        return format_bytes(number)
    return text if number is None or text[-1:].isalpha() else f"{number:.4g}"
