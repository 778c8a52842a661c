"""A comparison as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from orch.experiment.breakdown import title
from orch.report.compare import LEVEL, Comparison, Pair
from orch.report.stored import StoredStack
from orch.units import format_seconds

BAR = 44
_SMALL = 0.0005  # of the longer step: a change that no column would show


def header(found: Comparison) -> list[str]:
    """Return what is compared, in which mode, and how sure the table is of it."""
    modes = sorted({mode for pair in found.pairs for mode in pair.modes})
    runs = dict.fromkeys(stack.run.id for pair in found.pairs for stack in (pair.reference, pair.own))
    workers = dict.fromkeys(stack.run.workers for pair in found.pairs for stack in (pair.reference, pair.own))
    counts = " and ".join(str(count) for count in workers)
    sure = f"each gain with its {100 * LEVEL:.0f} % interval" + (
        f", which holds for all {len(found.pairs)} together" if len(found.pairs) > 1 else ""
    )
    if modes == ["simulated"]:
        sure = "each gain with its range over what the inputs leave open"
    return [f"{' and '.join(modes)}, {counts} workers: run {', '.join(runs)}", sure]


def rows(found: Comparison) -> tuple[list[str], list[list[object]]]:
    """Return headers and rows: each stack beside what it is compared with."""
    several = len({stack.run.directory.path for pair in found.pairs for stack in (pair.reference, pair.own)}) > 1

    def name(stack: StoredStack) -> str:
        return stack.label if several else stack.name

    cells: list[list[object]] = [
        [
            name(pair.own),
            format_seconds(pair.own.step_time_s),
            name(pair.reference),
            format_seconds(pair.reference.step_time_s),
            gain(pair),
            _how(pair),
        ]
        for pair in found.pairs
    ]
    return ["stack", "step time", "against", "step time", "gain", ""], cells


def gain(pair: Pair) -> str:
    """Return the gain with its interval, or that none can be told."""
    if pair.speedup is not None:
        return str(pair.speedup)
    if pair.range is not None:
        return f"{pair.range.median:.2f} ({pair.range.lo:.2f} to {pair.range.hi:.2f})"
    return f"{pair.reference.step_time_s / pair.own.step_time_s:.2f} (no interval)"


def _how(pair: Pair) -> str:
    if pair.range is not None:
        return "simulated"
    return "paired" if pair.paired else "not paired"


def waterfall(pair: Pair) -> list[str]:
    """Return the waterfall from the reference's step time to the other's, a line a class; nothing without a record."""
    if not pair.waterfall:
        return []
    start, end = pair.reference.step_time_s, pair.own.step_time_s
    longest = max(_tops(pair))
    lines = ["", f"where the time of a step went, {pair.own.name} against {pair.reference.name}"]
    width = max(len(title(part.name)) for part in pair.waterfall)
    width = max(width, len(pair.reference.name), len(pair.own.name))
    lines.append(_line(pair.reference.name, width, format_seconds(start), 0.0, start, longest, "#"))
    at = start
    for part in pair.waterfall:
        change = part.change_s
        after = at + change
        if abs(change) >= _SMALL * longest:
            sign = "+" if change > 0 else "-"
            text = f"{sign}{format_seconds(abs(change))}"
            lines.append(_line(title(part.name), width, text, min(at, after), max(at, after), longest, sign))
        elif max(part.reference_s, part.own_s) >= _SMALL * longest:
            lines.append(f"  {title(part.name):<{width}}  {'0':>9}")
        at = after
    lines.append(_line(pair.own.name, width, format_seconds(end), 0.0, end, longest, "#"))
    return lines


def _tops(pair: Pair) -> Sequence[float]:
    tops = [pair.reference.step_time_s]
    for part in pair.waterfall:
        tops.append(tops[-1] + part.change_s)
    return tops


def _line(name: str, width: int, text: str, low: float, high: float, longest: float, mark: str) -> str:
    first = round(BAR * low / longest)
    last = max(first + 1, round(BAR * high / longest))
    return f"  {name:<{width}}  {text:>9}  {' ' * first}{mark * (last - first)}"
