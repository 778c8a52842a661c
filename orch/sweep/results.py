"""What a sweep came to, as data for programs and as a table for people."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from orch.sweep.metrics import Sought, key, shown
from orch.sweep.study import COMPLETE, Record, best_of, feasible
from orch.units import format_bytes

Document = dict[str, Any]
_SHOWN = 12


def document(name: str, mode: str, records: Sequence[Record], sought: Sought, more: Mapping[str, Any]) -> Document:
    """Return a study in the form of `orch sweep --json`."""
    best = best_of(records, sought)
    fit = feasible(records, sought)
    found: Document = {
        "study": name,
        "mode": mode,
        "objectives": {key(objective.metric): objective.direction for objective in sought.objectives},
        "constraints": [str(constraint) for constraint in sought.constraints],
        "counts": dict(Counter(record.state for record in records)),
        "trials": [record.to_json() for record in records],
        "best": None,
    }
    confirmed = more.get("confirmed")
    if best is not None:
        found["best"] = {**best.to_json(), "overrides": overrides_of(best.params), "confirmed": confirmed}
    if len(sought.objectives) > 1:
        points = [sought.of_values(record.about.values) for record in fit]
        found["pareto"] = sorted(fit[index].number for index in sought.front(points))
    return found | {name: value for name, value in more.items() if name != "confirmed"}


def overrides_of(params: Mapping[str, Any]) -> list[str]:
    """Return parameters as overrides of a command line; the stack is none."""
    return [
        f"{path}={value if isinstance(value, str) else json.dumps(value)}"
        for path, value in params.items()
        if path != "stack"
    ]


def table_of(found: Document) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows of the best trials; the JSON document has all."""
    rows = ranked(found)
    metrics = list(dict.fromkeys([*found["objectives"], *(name for trial in rows for name in trial["values"])]))
    paths = list(dict.fromkeys(path for trial in rows for path in trial["params"]))
    cells = [
        [
            str(trial["number"]), *(shown(name, trial["values"].get(name)) for name in metrics),
            *(_param(trial["params"].get(path)) for path in paths),
        ]
        for trial in rows[:_SHOWN]
    ]  # fmt: skip
    return ["trial", *metrics, *paths], cells


def ranked(found: Document) -> list[Document]:
    """Return the complete trials, best first, equal cells once; those of the Pareto front where there is one."""
    whole = [trial for trial in found["trials"] if trial["state"] == COMPLETE and trial.get("same_as") is None]
    if "pareto" in found:
        whole = [trial for trial in whole if trial["number"] in found["pareto"]]
    first, direction = next(iter(found["objectives"].items()))
    sign = -1.0 if direction == "maximize" else 1.0
    return sorted(whole, key=lambda trial: sign * trial["values"][first])


def _param(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, str) and value[:-1].isdigit() and value.endswith("B"):
        return format_bytes(float(value[:-1]))
    return str(value)


def lines_of(found: Document) -> list[str]:
    """Return what stands below the table."""
    counts = ", ".join(f"{number} {state}" for state, number in found["counts"].items())
    same = sum(trial.get("same_as") is not None for trial in found["trials"])
    again = f" ({same} met a cell that had been run)" if same else ""
    lines = ["", f"{found['study']}: {len(found['trials'])} trials: {counts}{again}"]
    reasons = Counter(
        trial["reason"] for trial in found["trials"] if trial.get("reason") and trial["state"] != COMPLETE
    )
    lines += [f"{number} x {reason}" for reason, number in reasons.most_common(3)]
    lines += _told_best(found)
    lines += _told_agreement(found.get("agreement"))
    if found.get("stopped"):
        lines.append(f"stopped: {found['stopped']}; the same line goes on")
    return lines


def _told_best(found: Document) -> list[str]:
    best = found["best"]
    if best is None:
        return ["no trial was feasible"] if found["trials"] else []
    settings = " ".join([f"stack {best['params'].get('stack')}", *best["overrides"]])
    lines = [f"best: trial {best['number']}, {settings}"]
    confirmed = best["confirmed"]
    if confirmed is None:
        return [*lines, "not measured again: what the best trial shows above is no gain, it was chosen for it"]
    gain = confirmed["gain"]
    again = "predicted" if confirmed["mode"] == "simulated" else f"{confirmed['mode']} again in fresh blocks"
    return [*lines, f"gain over {confirmed['over']}, {again}: {gain['text']}"]


def _told_agreement(agreed: Document | None) -> list[str]:
    """Say how far predictions and measurements differ, trial by trial, worst first."""
    if agreed is None:
        return []
    name, pairs = agreed["objective"], agreed["trials"]
    worst = sorted(
        pairs, key=lambda pair: -abs(pair["predicted"] / pair["measured"] - 1.0) if pair["measured"] else 0.0
    )
    told = "; ".join(
        f"trial {pair['number']}: {shown(name, pair['predicted'])} predicted, {shown(name, pair['measured'])} measured"
        for pair in worst[:3]
    )
    rank = agreed["rank_correlation"]
    order = "no order to compare" if rank is None else f"rank correlation {rank:.2f}"
    error = agreed["median_error"]
    size = "" if error is None else f"median error {100 * error:.0f} %, "
    return [f"prediction against measurement of {len(pairs)} trials: {size}{order}; {told}"]
