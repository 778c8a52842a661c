"""The one table that a run ends with, and what stands below it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orch.experiment.results import StackResult
from orch.units import format_bytes, format_seconds

HEADERS = [
    "stack", "step time", "gain over the baseline", "predicted", "error",
    "payload", "on the wire", "loss", "accuracy", "",
]  # fmt: skip


def row(result: StackResult) -> list[object]:
    """Return one stack as cells; loss and accuracy are those at equal own time."""
    quality, forecast = result.quality, result.forecast
    over = result.speedup.over == result.name
    return [
        result.name,
        format_seconds(result.step_time_s.median),
        "baseline" if over else _gain(result),
        format_seconds(forecast.step_time_s.median),
        f"{100 * result.prediction_error:+.0f} %",
        format_bytes(result.payload_bytes),
        format_bytes(forecast.footprint.wire),
        "-" if quality.loss_then is None else f"{quality.loss_then:.3f}",
        "-" if quality.accuracy_then is None else f"{quality.accuracy_then:.3f}",
        "exact" if forecast.lossless else "lossy",
    ]


def _gain(result: StackResult) -> str:
    speedup = result.speedup
    if speedup.distinguishable:
        return f"{speedup.median:.2f} [{speedup.lo:.2f}, {speedup.hi:.2f}]"
    return "not distinguishable"


def footnotes(document: Mapping[str, Any]) -> list[str]:
    """Return the lines below the table: what the columns mean, how sure they are, where the run is, what to type next."""
    stacks = document["stacks"]
    baseline = document["baseline"]
    blocks = next(iter(stacks.values()))["speedup"]["n"]
    then = next(iter(stacks.values()))["at_equal_time"]["seconds"]
    level = next(iter(stacks.values()))["speedup"]["level"]
    lines = [
        "",
        f"{document['mode']}: medians over {blocks} blocks; gains are paired per block, {100 * level:.0f} % intervals "
        f"that hold for all stacks together; payload and wire bytes are a worker's, a step",
        f"loss (training) and accuracy (held out) are those after {format_seconds(then)} of each stack's own training",
        f"if communication were free, {baseline} would take {format_seconds(document['ceiling']['step_time_s'])} a step; "
        f"median prediction error {100 * document['median_prediction_error']:.0f} %",
    ]
    for name, stack in stacks.items():
        if not stack["speedup"]["distinguishable"] and name != baseline and stack["note"]:
            lines.append(f"{name}: {stack['note']}")
    if document.get("run_dir"):
        lines += [
            "",
            f"run: {document['run_dir']}",
            "next: orch runs last (this run again), orch ui (browse all runs), orch plan RECIPE --diff A B (what differs)",
        ]
    return lines
