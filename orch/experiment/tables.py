"""The one table that a run ends with, and what stands below it, from the results as they are kept.

Made from the document alone, so that a run of last week shows the same table as the one that just ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orch.units import format_bytes, format_count, format_seconds

WIDTH = 120
_GAP = 2  # columns between cells
_SHORTEST_NAME = 12


def table_of(document: Mapping[str, Any], width: int = WIDTH) -> tuple[list[str], list[list[object]]]:
    """Return headers and rows of a run's results; names of stacks are cut where the table would not fit `width`."""
    columns = _simulated_columns if document["mode"] == "simulated" else _measured_columns
    rows = [columns(name, stack, document) for name, stack in document["stacks"].items()]
    headers = list(rows[0]) if rows else []
    cells: list[list[object]] = [[row[header] for header in headers] for row in rows]
    others = sum(_GAP + max(len(header), *(len(str(row[header])) for row in rows)) for header in headers[1:])
    room = max(_SHORTEST_NAME, width - others)
    for row in cells:
        row[0] = _cut(str(row[0]), room)
    return headers, cells


def faults_of(found: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[object]]]:
    """Return headers and rows of a table of what each fault costs each training (`faults` of a document)."""
    measured = any(cost["measured_step_time_s"] is not None for cost in found)
    headers = [
        "fault",
        "stack",
        "predicted step",
        *(["measured"] if measured else []),
        "steps again",
        "costs (predicted)",
    ]
    rows: list[list[object]] = []
    for cost in found:
        seen = cost["measured_step_time_s"]
        own = ["-" if seen is None else format_seconds(seen)] if measured else []
        again = str(cost["steps_again"] or "-")
        rows.append(
            [
                cost["fault"],
                cost["stack"],
                format_seconds(cost["step_time_s"]),
                *own,
                again,
                format_seconds(cost["extra_s"]),
            ]
        )
    return headers, rows


def _measured_columns(name: str, stack: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, str]:
    then = stack["at_equal_time"]
    found = {
        "stack": name,
        "step time": format_seconds(stack["step_time_s"]["median"]),
        "gain": "baseline" if name == document["baseline"] else _gain(stack["speedup"]),
        "predicted": f"{format_seconds(stack['predicted_step_time_s'])} ({100 * stack['prediction_error']:+.0f} %)",
        "payload": format_bytes(stack["payload_bytes_per_worker"]),
        "on the wire": format_bytes(stack["wire_bytes_per_worker"]),
        "loss": _number(then["loss"]),
        "accuracy": _number(then["accuracy"]),
    }
    if any(other["time_to_target_s"] is not None for other in document["stacks"].values()):
        reached = stack["time_to_target_s"]
        found["to target"] = "never" if reached is None else format_seconds(reached)
    return found | {"": _kind(stack)}


def _simulated_columns(name: str, stack: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, str]:
    band = stack["step_time_s"]
    return {
        "stack": name,
        "step time": format_seconds(band["median"]),
        "range": f"{format_seconds(band['lo'])} - {format_seconds(band['hi'])}",
        "gain": "baseline" if name == document["baseline"] else f"{stack['speedup']['median']:.2f}",
        "payload": format_bytes(stack["payload_bytes_per_worker"]),
        "on the wire": format_bytes(stack["wire_bytes_per_worker"]),
        "": _kind(stack),
    }


def _kind(stack: Mapping[str, Any]) -> str:
    return "exact" if stack["lossless"] else "lossy"


def _gain(speedup: Mapping[str, Any]) -> str:
    if speedup["distinguishable"]:
        return f"{speedup['median']:.2f} [{speedup['lo']:.2f}, {speedup['hi']:.2f}]"
    return "not distinguishable"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def footnotes(document: Mapping[str, Any]) -> list[str]:
    """Return the lines below the table: what the columns mean, how sure they are, what stacks have to say."""
    simulated = document["mode"] == "simulated"
    lines = ["", *(_simulated_notes(document) if simulated else _measured_notes(document))]
    lines += [str(note) for note in document.get("notes", ())]
    notes = {name: stack["note"] for name, stack in document["stacks"].items() if stack["note"]}
    if simulated:
        return [*lines, *dict.fromkeys(notes.values())]
    return lines + [f"{name}: {note}" for name, note in notes.items() if name != document["baseline"]]


def _measured_notes(document: Mapping[str, Any]) -> list[str]:
    first = next(iter(document["stacks"].values()))
    blocks, level, then = first["speedup"]["n"], first["speedup"]["level"], first["at_equal_time"]["seconds"]
    baseline, ceiling = document["baseline"], document["ceiling"]
    return [
        f"{document['mode']} on {format_count(document['workers'], 'worker')}: medians of {blocks} blocks; gain over {baseline} "
        f"is paired per block, its {100 * level:.0f} % interval",
        "holds for all stacks together; bytes are a worker's, a step; loss (training) and accuracy (held out) are those",
        f"after {format_seconds(then)} of each stack's own training",
        # Both from the model: a measured step over a predicted one would be a gain, or a loss, of the prediction's error.
        f"if communication were free: {format_seconds(ceiling['step_time_s'])} a step, {ceiling['speedup']:.2f} times as "
        f"fast as {baseline} (both predicted); "
        f"median prediction error {100 * document['median_prediction_error']:.0f} %",
    ]


def _simulated_notes(document: Mapping[str, Any]) -> list[str]:
    ceiling = document["ceiling"]
    return [
        f"simulated for {format_count(document['workers'], 'worker')}, nothing was run; gain over {document['baseline']}; "
        "bytes are a worker's, a step",
        f"if communication were free: {format_seconds(ceiling['step_time_s'])} a step, {ceiling['speedup']:.2f} times as "
        f"fast as {document['baseline']}; no exact schedule can beat that here",
    ]


def next_steps(document: Mapping[str, Any], recipe: str) -> Sequence[str]:
    """Return where the run is, and what a user may want to type now."""
    stacks = list(document["stacks"])
    other = next((name for name in stacks if name != document["baseline"]), None)
    lines = [f"run: {document['run_dir']}"] if document.get("run_dir") else []
    if document.get("run_dir"):
        lines.append("next: orch runs last (this again)   orch ui (all runs in a browser)")
    if other is not None:
        lines.append(
            f"      orch plan {recipe} --diff {_word(document['baseline'])} {_word(other)} (how their plans differ)"
        )
    return ["", *lines] if lines else []


def _word(name: str) -> str:
    import shlex

    return shlex.quote(name)
