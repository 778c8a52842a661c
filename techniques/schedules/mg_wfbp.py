"""MG-WFBP: send neighbouring gradients in one all-reduce where waiting costs less than another start-up.

Helps: many small tensors, long start-up, many workers. Does not: few large tensors, one worker. Lossless.
Source: Shi, Chu, Li, INFOCOM 2019 (arXiv:1811.11141); the exact planner is ours: the greedy rule of the paper is not
optimal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Literal

from orch.plan import Plan, Task
from orch.technique import Context, Knobs, Slot, Technique, choice, fuse_each_wave


class Config(Knobs):
    """How gradients are grouped."""

    planner: Literal["exact", "greedy"] = choice(
        "exact", "exact: no grouping ends sooner; greedy: the paper's rule, kept to check its claims"
    )


Cost = Callable[[Any], Any]


def exact(ready_s: Sequence[float], nbytes: Sequence[float], cost_s: Cost) -> list[int]:
    """Return the bucket ends of the contiguous grouping whose last all-reduce ends first.

    `ready_s` [s] and `nbytes` [bytes] are in launch order; `cost_s(bytes)` gives seconds and broadcasts. Ties go to
    later cuts. f[i] = min over j < i of max(f[j], ready[i-1]) + cost(bytes of j..i-1): quadratic in tensors, for any
    cost.
    """
    import numpy as np

    sizes = np.array([0.0, *accumulate(nbytes)])
    finish = np.zeros(len(nbytes) + 1)
    cut = [0] * (len(nbytes) + 1)
    for i in range(1, len(sizes)):
        ends = np.maximum(finish[:i], ready_s[i - 1]) + cost_s(sizes[i] - sizes[:i])
        best = i - 1 - int(np.argmin(ends[::-1]))
        cut[i], finish[i] = best, ends[best]
    bounds = []
    i = len(nbytes)
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
    alpha = cost_s(2.0) - 2.0 * (cost_s(2.0) - cost_s(1.0))
    ends, free, begin = [], 0.0, 0
    for i in range(len(nbytes) - 1):
        start = max(free, ready_s[i])
        end = start + cost_s(sum(nbytes[begin : i + 1]))
        waits = ready_s[i + 1] - start
        if not (ready_s[i + 1] < end and waits < alpha):
            ends.append(i + 1)
            free, begin = end, i + 1
    return [*ends, len(nbytes)]


PLANNERS = {"exact": exact, "greedy": greedy}


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Fuse the collectives of each wave as the planner says."""

    def group(plan: Plan, step: int, sends: Sequence[Task]) -> list[int]:
        ready = context.ready_s(plan, step, sends)
        return PLANNERS[config.planner](ready, [send.op.nbytes for send in sends], context.collective_s(plan, sends[0]))

    return fuse_each_wave(plan, group)


technique = Technique(
    name="mg-wfbp",
    slot=Slot.SCHEDULE,
    rewrite=rewrite,
    source="arXiv:1811.11141",
    lossless=True,
    config=Config,
)
