"""MG-WFBP: send neighbouring gradients in one all-reduce where waiting costs less than another start-up.

Helps: many small tensors, long start-up, many workers. Does not: few large tensors, one worker. Lossless.
Source: Shi, Chu, Li, INFOCOM 2019 (arXiv:1811.11141); the exact planner is ours: the paper's greedy rule is not
optimal.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Literal, Self

from pydantic import model_validator

from orch.plan import Plan, Task
from orch.technique import Context, Knobs, Slot, Technique, choice, fuse_each_wave, quantity
from orch.units import Bytes, Seconds, SecondsPerByte


class Config(Knobs):
    """How gradients are grouped, and by which constants."""

    planner: Literal["exact", "greedy"] = choice(
        "exact", "exact: no grouping ends sooner; greedy: the paper's rule, kept to check its claims"
    )
    min_bucket: Bytes = quantity("0B", "a bucket that serves less gradient joins the next (the authors later: 32KiB)")
    alpha: Seconds | None = quantity(None, "start-up to plan with, in place of the cluster's; with beta")
    beta: SecondsPerByte | None = quantity(None, "time per payload byte to plan with; with alpha")

    @model_validator(mode="after")
    def _both_or_none(self) -> Self:
        if (self.alpha is None) != (self.beta is None):
            raise ValueError("alpha and beta belong together: give both, or none to plan with the cluster's own")
        return self


Cost = Callable[[Any], Any]

# Rows of the cost matrix made at once: many enough to vectorise, few enough to skip what a later row cannot need.
_ROWS = 64
# So many possible cuts are compared sooner one by one than by NumPy.
_FEW = 32


def exact(ready_s: Sequence[float], nbytes: Sequence[float], cost_s: Cost) -> list[int]:
    """Return the bucket ends of the contiguous grouping whose last all-reduce ends first.

    `ready_s` [s] and `nbytes` [bytes] are in launch order; `cost_s(bytes)` gives seconds, grows with bytes
    and broadcasts. Ties go to later cuts.
    f[i] = min over j < i of max(f[j], ready[i-1]) + cost(bytes of j..i-1): quadratic in tensors. f ascends and so does
    the cost of a longer bucket, so of all j with f[j] <= ready[i-1] only the last can win.
    """
    import numpy as np

    count = len(nbytes)
    ready_s = list(accumulate(ready_s, max))
    sizes = np.array([0.0, *accumulate(nbytes)])
    finish = np.zeros(count + 1)
    known = [0.0]
    cut = [0] * (count + 1)
    begin = least = 0
    for i in range(1, count + 1):
        ready = ready_s[i - 1]
        least = max(least, bisect_right(known, ready) - 1)
        if i == 1 or i >= begin + _ROWS:
            # `least` never moves back, so what lies before it need not be costed for this row or any later one.
            begin, first = i, least
            costs = cost_s(sizes[i : i + _ROWS, None] - sizes[None, first : i + _ROWS])
        row = costs[i - begin, least - first : i - first]
        # What ended by `ready` leaves the network free then; all later ends lie beyond it.
        if len(row) <= _FEW:
            costs_s = row.tolist()
            cut[i], end = least, ready + costs_s[0]
            for j in range(least + 1, i):
                ended = known[j] + costs_s[j - least]
                if ended <= end:
                    cut[i], end = j, ended
        else:
            ends = finish[least:i] + row
            ends[0] = ready + row[0]
            cut[i] = i - 1 - int(ends[::-1].argmin())
            end = float(ends[cut[i] - least])
        finish[i] = end
        known.append(end)
    bounds = []
    i = count
    while i > 0:
        bounds.append(i)
        i = cut[i]
    return bounds[::-1]


def greedy(ready_s: Sequence[float], nbytes: Sequence[float], cost_s: Cost) -> list[int]:
    """Return the bucket ends of the paper's rule: wait for the next gradient when that takes less than one start-up.

    The open bucket would start at max(end of the one before, its last gradient's time); the next gradient joins when
    it is ready before that all-reduce would end and less than a start-up after it would begin (MG-WFBP, Algorithm 1;
    equality does not merge).
    """
    alpha = 2.0 * cost_s(1.0) - cost_s(2.0)
    ends, free, held = [], 0.0, 0.0
    for i in range(len(nbytes) - 1):
        held += nbytes[i]
        start = max(free, ready_s[i])
        end = start + cost_s(held)
        if not (ready_s[i + 1] < end and ready_s[i + 1] - start < alpha):
            ends.append(i + 1)
            free, held = end, 0.0
    return [*ends, len(nbytes)]


PLANNERS = {"exact": exact, "greedy": greedy}


def join_small(ends: Sequence[int], nbytes: Sequence[float], least: float) -> list[int]:
    """Return `ends` without the ends of buckets of less than `least` bytes; the last bucket stays as it is."""
    kept, begin = [], 0
    for end in ends:
        if end == len(nbytes) or sum(nbytes[begin:end]) >= least:
            kept.append(end)
            begin = end
    return kept


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Fuse the collectives of each wave as the planner says."""

    def group(plan: Plan, step: int, sends: Sequence[Task]) -> list[int]:
        ready = context.ready_s(plan, step, sends)
        cost = context.collective_s(plan, sends[0])
        if config.alpha is not None and config.beta is not None:
            cost = _affine(config.alpha, config.beta)
        ends = PLANNERS[config.planner](ready, [send.op.nbytes for send in sends], cost)
        if not config.min_bucket:
            return ends
        return join_small(ends, [context.gradient_bytes(send) for send in sends], config.min_bucket)

    return fuse_each_wave(plan, group)


def _affine(alpha_s: float, beta_s_per_byte: float) -> Cost:
    # Times one for something, zero for nothing: an all-reduce of no bytes is not sent.
    return lambda nbytes: (nbytes > 0) * (alpha_s + beta_s_per_byte * nbytes)


technique = Technique(
    name="mg-wfbp",
    slot=Slot.SCHEDULE,
    rewrite=rewrite,
    source="arXiv:1811.11141",
    lossless=True,
    config=Config,
)
