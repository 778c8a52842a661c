"""Advice as text for a terminal, and as data."""

from __future__ import annotations

from typing import Any

from orch.advise.advise import FLOOR, Advice, Advised
from orch.advise.measure import Confirmation
from orch.experiment.what_if import bit_per_s
from orch.units import format_bytes, format_seconds

NOTES = """error: how far the gain may lie from the figure, over what the inputs leave open and as wrong as predictions are; a gain
inside it is not sold. memory: more than the baseline's, a worker. lossy: changes what is learned; only a target tells its worth"""


def headline(advice: Advice) -> list[str]:
    """Return the answer, and what no stack can beat."""
    base, best = advice.baseline, advice.best
    where = advice.recipe.cluster
    lines = [
        f"{advice.recipe.name} on {where.name}, {where.world_size} workers: {advice.tried} stacks simulated, nothing was run",
        f"if communication were free: {advice.ceiling_speedup:.2f} times as fast as {base.name}",
        "",
    ]
    if best is None:
        return [*lines, f"keep {base.name}: no other stack gains more than the error of its prediction"]
    text = (
        f"try {best.name}: {best.gain.median:.2f} [{best.gain.lo:.2f}, {best.gain.hi:.2f}] times as fast as {base.name}"
    )
    if not best.lossless:
        return [*lines, f"{text}, lossy; no exact stack gains more than the error of its prediction"]
    lossy = next((one for one in advice.ranked if one.verdict == "faster" and not one.lossless), None)
    more = lossy is not None and lossy.gain.median > best.gain.median
    return [*lines, text + (f"; lossy, {lossy.name}: {lossy.gain.median:.2f}" if more and lossy else "")]


def rows(advice: Advice) -> tuple[list[str], list[list[object]]]:
    """Return headers and rows, the baseline first."""
    base = advice.baseline
    first = [
        base.name,
        format_seconds(base.step_time_s.median),
        "baseline",
        "",
        format_seconds(base.exposed_communication_s),
    ]
    cells: list[list[object]] = [[*first, "", _kind(base.lossless), ""]]
    for one in advice.ranked:
        cells.append(
            [
                one.name,
                format_seconds(one.step_time_s),
                f"{one.gain.median:.2f}",
                f"-{100 * one.gain.less:.0f} +{100 * one.gain.more:.0f} %",
                format_seconds(one.exposed_s),
                _memory(one.extra_memory_bytes),
                _kind(one.lossless),
                "; ".join([one.verdict, *one.risks]),
            ]
        )
    return ["stack", "step time", "gain", "error", "exposed", "memory", "", "verdict"], cells


def _kind(lossless: bool) -> str:
    return "exact" if lossless else "lossy"


def _memory(extra: int) -> str:
    return "" if abs(extra) < 2**16 else f"{'+' if extra > 0 else '-'}{format_bytes(abs(extra))}"


def basis(advice: Advice) -> str:
    """Return what the errors rest on."""
    rests = f"rests on: {advice.baseline.basis}"
    if advice.past_error is None:
        small = f"gains under {100 * FLOOR:.0f} % are never sold"
        return f"{rests}; no measured run of this model tells how good its predictions are, so {small}"
    runs = f"{advice.past_runs} gain{'s' * (advice.past_runs > 1)} measured before"
    return f"{rests}; {runs} were {100 * advice.past_error:.0f} % off (median)"


def elsewhere(advice: Advice) -> tuple[list[str], list[list[object]]]:
    """Return the gains over the baseline on other clusters."""
    places = list(advice.elsewhere[0].gains) if advice.elsewhere else []
    here = {one.name: one.gain.median for one in advice.ranked}
    cells: list[list[object]] = [
        [one.stack, f"{here[one.stack]:.2f}", *("-" if g is None else f"{g:.2f}" for g in one.gains.values())]
        for one in advice.elsewhere
    ]
    return ["gain elsewhere", "here", *places], cells


def confirmed(found: Confirmation) -> tuple[list[str], list[list[object]]]:
    """Return what a run said of the advice."""
    cells: list[list[object]] = []
    for one in found.stacks:
        band = "" if one.lo is None or one.hi is None else f" [{one.lo:.2f}, {one.hi:.2f}]"
        cells.append([one.name, f"{one.predicted:.2f}", f"{one.measured:.2f}{band}", one.verdict])
    return ["stack", "predicted gain", "measured gain", ""], cells


def document(advice: Advice, found: Confirmation | None = None) -> dict[str, Any]:
    """Return advice as JSON data, times in seconds, the stacks in the order of their gains."""
    best = advice.best
    return {
        "recipe": advice.recipe.name,
        "cluster": advice.recipe.cluster.name,
        "workers": advice.recipe.cluster.world_size,
        "mode": "simulated",
        "baseline": {"stack": advice.baseline.name, "step_time_s": advice.baseline.step_time_s.median},
        "ceiling_speedup": advice.ceiling_speedup,
        "link_bit_per_s": bit_per_s(advice.recipe.cluster),
        "tried": advice.tried,
        "best": None if best is None else best.name,
        "past_error": advice.past_error,
        "past_gains": advice.past_runs,
        "basis": advice.baseline.basis,
        "stacks": [_advised(one) for one in advice.ranked],
        "elsewhere": [{"stack": one.stack, "gains": one.gains} for one in advice.elsewhere],
        "confirmed": None
        if found is None
        else {"run_dir": found.run_dir, "stacks": [_confirmed(one) for one in found.stacks]},
    }


def _advised(one: Advised) -> dict[str, Any]:
    return {
        "stack": one.name,
        "techniques": one.candidate.written,
        "own": one.candidate.own,
        "step_time_s": one.step_time_s,
        "gain": {
            "median": one.gain.median,
            "lo": one.gain.lo,
            "hi": one.gain.hi,
            "less": one.gain.less,
            "more": one.gain.more,
        },
        "verdict": one.verdict,
        "lossless": one.lossless,
        "exposed_communication_s": one.exposed_s,
        "extra_memory_bytes": one.extra_memory_bytes,
        "fits": one.fits,
        "risks": list(one.risks),
    }


def _confirmed(one: Any) -> dict[str, Any]:
    return {
        "stack": one.name, "predicted": one.predicted, "measured": one.measured, "lo": one.lo, "hi": one.hi, "verdict": one.verdict,
    }  # fmt: skip
