"""How well predictions and measurements agree: in size, and in order, which is what choosing by simulation rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from orch.sweep.metrics import Objective, key
from orch.sweep.study import COMPLETE, Record


def agreement(records: Sequence[Record], objective: Objective) -> dict[str, Any] | None:
    """Return predicted and measured values of an objective, their median error and rank correlation; None for none."""
    pairs = [
        (record.number, record.predicted[objective.metric], record.about.values[objective.metric])
        for record in records
        if record.state == COMPLETE and objective.metric in record.predicted
    ]
    if not pairs:
        return None
    predicted, measured = [pair[1] for pair in pairs], [pair[2] for pair in pairs]
    errors = [abs(left / right - 1.0) for left, right in zip(predicted, measured, strict=True) if right]
    return {
        "objective": key(objective.metric),
        "trials": [{"number": n, "predicted": left, "measured": right} for n, left, right in pairs],
        "median_error": median(errors) if errors else None,
        "rank_correlation": rank_correlation(predicted, measured),
    }


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, mean ranks for equal values; None where one side is constant."""
    ranks = [_ranks(values) for values in (left, right)]
    means = [fmean(each) for each in ranks]
    off = [[rank - mean for rank in each] for each, mean in zip(ranks, means, strict=True)]
    spread = [sum(value * value for value in each) for each in off]
    if not all(spread):
        return None
    product: float = sum(a * b for a, b in zip(*off, strict=True))
    return product / math.sqrt(spread[0] * spread[1])


def _ranks(values: Sequence[float]) -> list[float]:
    return [
        fmean([sum(other < value for other in values), sum(other <= value for other in values) - 1]) for value in values
    ]
