"""What stands below a figure, so that it can be read alone: what it shows, its mode, n, interval, and how old the
calibration is that its simulated part rests on.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, date, datetime
from typing import Any

from orch.experiment.what_if import bit_per_s, slowest_link
from orch.report.compare import LEVEL
from orch.report.data import Subject
from orch.report.paint_maps import TIE
from orch.report.style import bits

TITLES = {
    "speedup": "How much faster, and how much faster it could be",
    "breakdown": "Where the time of a step goes",
    "timelines": "What runs when",
    "scaling": "More workers",
    "regime": "Other links, other sizes: which stack is best where",
    "target": "Quality over time, and over bytes",
    "pareto": "Speed against what it costs",
    "prediction": "Predicted against measured",
}
_DATE = re.compile(r"\b(20\d\d)-(\d\d)-(\d\d)\b")


def caption(name: str, about: Subject) -> str:
    """Return the caption of figure `name`, plain text."""
    said = {
        "speedup": _speedup,
        "breakdown": _breakdown,
        "timelines": _timelines,
        "scaling": _scaling,
        "regime": _regime,
        "target": _target,
        "pareto": _pareto,
        "prediction": _prediction,
    }[name](about)
    return f"{said} {_standing(name, about)}"


def _speedup(about: Subject) -> str:
    run = about.run
    pairs = list(about.pairs())
    text = f"Gain of every stack over {run.baseline} in step time; the tick: the same stack with communication free, predicted."
    if run.simulated:
        return text + " Whiskers: the range over what the inputs leave open, both stacks on the same cluster."
    together = f", widened so that all {len(pairs)} hold together" if len(pairs) > 1 else ""
    return text + (
        f" Whiskers: {100 * LEVEL:.0f} % t interval of paired log ratios{together}. Pale: not distinguishable from {run.baseline}."
    )


def _breakdown(about: Subject) -> str:
    text = "Every instant of a step belongs to one class; the bars add up to the step time."
    if about.run.simulated:
        return text
    return text + (
        " From the steps that rank 0 recorded, as shares of the step time of all blocks; torch's DDP does not say when its "
        "collectives ran, so what it took longer than the others computed counts as exposed."
    )


def _timelines(about: Subject) -> str:
    text = f"{about.run.baseline} and {about.star.name} over the same seconds, from the start of a forward pass."
    text += " The dark line marks the critical path: shorten what lies on it, or nothing gets faster."
    return (
        text if about.run.simulated else text + " Measured lanes are what rank 0 recorded in the last steps of a block."
    )


def _scaling(about: Subject) -> str:
    text = "Workers added in whole nodes, the batch of a worker held. Efficiency is the step time of one worker over that of n."
    text += " Dashed: simulated."
    return text if about.run.simulated else text + f" Points and solid lines: {about.run.mode}."


def _regime(about: Subject) -> str:
    link = slowest_link(about.cluster)
    now = bit_per_s(about.cluster)
    at = f" ({bits(now)})" if now else ""
    what = "the link between nodes" if about.cluster.nodes > 1 else "the link inside the node"
    text = (
        f"Best stack of every cell, with its gain over {about.run.baseline}; hatched where another is within "
        f"{100 * TIE:.0f} % of it. Every stack is planned anew in every cell. Bandwidth is that of {what}{at}; start-ups stay, "
        "and so does the batch of a worker."
    )
    return text if link is not None else text + " No link is described."


def _target(about: Subject) -> str:
    asked = about.run.recipe.get("target")
    text = "Each stack over its own clock, other stacks' blocks left out, and over the bytes a worker has sent; a line a seed."
    if not asked:
        return text + " The recipe names no target."
    reached = [
        f"{stack.name} {stack.result['time_to_target_s']:.3g} s" if stack.result.get("time_to_target_s") is not None
        else f"{stack.name} never"
        for stack in about.run.stacks.values()
    ]  # fmt: skip
    return text + f" Target {asked['metric']} {asked['reach']:g}: {', '.join(reached)}."


def _pareto(about: Subject) -> str:
    if about.run.simulated:
        cost = "the bytes that a worker sends in a step"
    else:
        cost = "the training loss after the same number of steps (mean of the last 10)"
    return f"Step time against {cost}; filled: no other stack is better in both."


def _prediction(about: Subject) -> str:
    error = about.run.results.get("median_prediction_error")
    said = f" Median error {100 * error:.0f} %." if isinstance(error, int | float) else ""
    return f"Predictions rest on links and layer times that the run measured beside its blocks, never on a block itself.{said}"


def _standing(name: str, about: Subject) -> str:
    """Return the part that no caption lacks: mode, n, interval, calibration."""
    run = about.run
    blocks = max((len(stack.block_times_s) for stack in run.stacks.values()), default=0)
    seeds = len(run.seeds)
    mode = "simulated" if name == "regime" else run.mode
    if name in ("scaling", "timelines") and not run.simulated:
        mode = f"{run.mode} and simulated"
    n = (
        "n: none, a simulation has no noise"
        if mode == "simulated"
        else f"n = {blocks} blocks of {seeds} seed{'s' * (seeds > 1)}"
    )
    interval = {"speedup": ""}.get(name, " Interval: none.")
    return f"Mode: {mode}. {n}.{interval} Calibration: {calibration(about)}."


def calibration(about: Subject) -> str:
    """Return what the simulated part rests on and how old that is, seen from now."""
    run = about.run
    if not run.simulated:
        taken = _started(run.facts, run.id)
        when = "nobody knows when" if taken is None else f"{_age(taken)} ago ({taken:%Y-%m-%d})"
        return f"links and layer times measured in this run, {when}"
    cluster = about.cluster
    dates = [date(int(y), int(m), int(d)) for y, m, d in _DATE.findall(str(run.recipe.get("cluster")))]
    when = f"{_days(min(dates))} old" if dates else "the cluster file gives no date"
    return f"{cluster.device.basis} compute, {cluster.basis()} links; {when}"


def _started(facts: Mapping[str, Any], run_id: str) -> datetime | None:
    """Return when the run began: its name says so, or, of a directory that was renamed and of a sweep's trial, its facts."""
    for name in (run_id, str(facts.get("id", ""))):
        with suppress(ValueError):
            return datetime.strptime(name[:15], "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    return None


def _age(then: datetime) -> str:
    seconds = max(0.0, time.time() - then.timestamp())
    for length, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' * (count > 1)}"
    return "less than a minute"


def _days(then: date) -> str:
    count = (datetime.now(tz=UTC).date() - then).days
    return f"{count} day{'s' * (count != 1)}"
