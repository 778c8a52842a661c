"""What a claim compares: the metric of a cell over all draws, and the published number for the same cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from orch.errors import OrchError
from orch.reproduce.draws import Array
from orch.reproduce.evaluate import CellDraws, StackDraws
from orch.reproduce.paper import Paper
from orch.reproduce.schema import Claim
from orch.reproduce.verdict import SIDE, Published

NO_EFFECT = 1.0
# Metrics that compare with the same step without communication.
APART = ("exposed_time", "scaling_efficiency")
# Numbers that are better when they are smaller: a ratio of them is `over / of`, so that a gain is above 1.
_SMALLER = ("step_time", "exposed_time", "bytes", "memory", "count")


def stacks_of(claim: Claim) -> tuple[str, ...]:
    """Return the stacks that a claim is about, the mended one included."""
    named = [*_listed(claim.of), *_listed(claim.over), *_listed(claim.mended)]
    return tuple(dict.fromkeys(named))


def _listed(names: str | list[str] | None) -> list[str]:
    return [names] if isinstance(names, str) else names or []


def no_effect(claim: Claim) -> float | None:
    """Return the value that means no effect: 1 for a ratio; an absolute number has none."""
    return NO_EFFECT if claim.over is not None else None


def values(claim: Claim, draws: CellDraws, of: str | None = None) -> Array:
    """Return a claim's metric [draws] in one cell; `of` takes the place of the claim's own stack."""
    of = of or str(claim.of)
    metric = claim.metric or ""
    own = _absolute(metric, draws.stacks[of], draws.samples)
    tiny = np.finfo(float).tiny  # no exposed time at all has no logarithm
    if claim.over is None:
        return np.maximum(own, tiny)
    # Only step times have several rivals: the best competitor is the fastest, draw by draw.
    rivals = [_absolute(metric, draws.stacks[name], draws.samples) for name in _listed(claim.over)]
    other: Array = np.min(rivals, axis=0)
    if metric == "speedup" or metric in _SMALLER:
        own, other = other, own
    return np.maximum(own, tiny) / np.maximum(other, tiny)


def _absolute(metric: str, stack: StackDraws, samples: int) -> Array:
    match metric:
        case "step_time" | "speedup":
            return stack.step_s
        case "throughput":
            return samples / stack.step_s
        case "scaling_efficiency":
            return stack.single_s / stack.step_s
        case "exposed_time":
            return np.maximum(stack.step_s - stack.ceiling_s, 0.0)
        case "bytes":
            return stack.payload_bytes
        case "memory":
            return stack.memory_bytes
        case "count":
            return stack.num_collectives
    raise ValueError(f"{metric} is not simulated")


def holds(claim: Claim, draws: CellDraws) -> Array:
    """Return, a draw, 1 where the statement holds and 0 elsewhere: faster means by more than 1 %."""
    names = _listed(claim.of)
    rivals = ((names[0], other) for other in _listed(claim.over))
    pairs = pairwise(names) if claim.metric == "ordering" else rivals
    gains = [np.log(draws.stacks[slow].step_s / draws.stacks[fast].step_s) for fast, slow in pairs]
    least: Array = np.min(gains, axis=0)
    return (least > SIDE).astype(np.float64)


def step_published(paper: Paper, table: str, draws: CellDraws, stack: str) -> float | None:
    """Return the published seconds of a step of one stack in a cell; None where the table does not have them."""
    row = draws.cell.row
    if row is None or stack not in row.cells:
        return None
    value = row.number(stack)
    if value is None:
        return None
    return value if paper.spec.evidence[table].values == "step_time" else draws.samples / value


def of_table(paper: Paper, table: str, claim: Claim, draws: CellDraws) -> Published | None:
    """Return what a table's row publishes for the claim; None where it left one of its numbers empty.

    Raises OrchError (E353) for a metric that times do not give.
    """
    names = [str(claim.of), *_listed(claim.over)]
    row = draws.cell.row
    if claim.metric not in ("step_time", "speedup", "throughput", "scaling_efficiency") or row is None:
        message = f"claim '{claim.id}' cannot take its {claim.metric} from a table of times"
        raise OrchError(message, code="E353", where=paper.where(claim), hint="publish a number under evidence")
    for name in names:
        paper.tables[table].column(name, paper.where(claim))
    times = [step_published(paper, table, draws, name) for name in names]
    if None in times:
        return None
    of, over = times[0] or math.nan, min(time or math.nan for time in times[1:] or times)
    value = {
        "step_time": of if len(names) == 1 else over / of,
        "speedup": over / of,
        "throughput": draws.samples / of if len(names) == 1 else over / of,
        "scaling_efficiency": 0.0,
    }[claim.metric]
    ids = [row.number_id(name) for name in names]
    if claim.metric == "scaling_efficiency":
        single = row.number(paper.tables[table].column("single", paper.where(claim))) or math.nan
        # One column of samples a second of one worker, or of seconds a step of it, whatever the others hold.
        alone = single if paper.spec.evidence[table].values == "step_time" else draws.recipe.batch_per_worker() / single
        value = alone / of  # what one worker does alone is what it is compared with, not what is to be explained
    return Published(value, paper.spec.evidence[table].source, ids=tuple(ids))


def stated(paper: Paper, claim: Claim) -> list[Published]:
    """Return what a claim publishes as a number or a range of its own."""
    value = claim.published
    if isinstance(value, str):
        given = paper.spec.evidence[value]
        numbers = given.range if given.range is not None else [given.value]
        node = paper.tree.find(("evidence", value, "range" if given.range is not None else "value"))
        source, ids = given.source, (f"{paper.name}/{value}",)
    else:
        numbers = value if isinstance(value, list) else [value]
        index = paper.spec.claims.index(claim) if claim in paper.spec.claims else paper.spec.checks.index(claim)
        section = "claims" if claim in paper.spec.claims else "checks"
        node = paper.tree.find((section, str(index), "published"))
        source, ids = claim.source or "derived", (f"{paper.name}/{claim.id}",)
    texts = [child.text for _, child in node.items()] if node is not None and isinstance(value, list) else []
    texts = texts or [node.text if node is not None else None] * len(numbers)
    return [
        Published(float(number or 0.0), source, text or "", ids) for number, text in zip(numbers, texts, strict=False)
    ]


def aggregate(kind: str, cells: Sequence[Array]) -> Array:
    """Return an aggregate over cells [draws, numbers]: mean, max, min, or range (min and max)."""
    stacked = np.array(cells)
    if kind == "range":
        return np.stack([stacked.min(axis=0), stacked.max(axis=0)], axis=1)
    of_cells: dict[str, Callable[..., Any]] = {"mean": np.mean, "max": np.max, "min": np.min}
    found: Array = of_cells[kind](stacked, axis=0)
    return found[:, None]
