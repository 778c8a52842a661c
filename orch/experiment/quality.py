"""Loss and accuracy of stacks at equal own time: a faster stack has made more steps by then, and that is its gain."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from statistics import fmean, median

# A loss of one batch jumps; its mean over this many last steps is what the table shows.
LOSS_WINDOW = 10


def at_time(clock_s: Sequence[float], values: Sequence[float], when_s: float) -> float | None:
    """Return the value at `when_s` of a curve sampled at ascending `clock_s`, by linear interpolation.

    Before the first sample and after the last the curve is not known: None.
    """
    if not clock_s or when_s < clock_s[0] or when_s > clock_s[-1] * (1 + 1e-9):
        return None
    after = min(bisect.bisect_left(clock_s, when_s), len(clock_s) - 1)
    if after == 0 or clock_s[after] <= when_s:
        return values[after]
    before = after - 1
    share = (when_s - clock_s[before]) / (clock_s[after] - clock_s[before])
    return values[before] + share * (values[after] - values[before])


def smoothed(losses: Sequence[float], window: int = LOSS_WINDOW) -> list[float]:
    """Return, for each step, the mean loss of it and of up to `window - 1` steps before it."""
    return [fmean(losses[max(0, index + 1 - window) : index + 1]) for index in range(len(losses))]


def time_to(clock_s: Sequence[float], values: Sequence[float], reach: float, *, falling: bool) -> float | None:
    """Return when a curve first reaches `reach` [s, own clock], falling to it or rising to it; None when it never
    does.
    """
    for time, value in zip(clock_s, values, strict=True):
        if value <= reach if falling else value >= reach:
            return time
    return None


def block_time_s(step_times_s: Sequence[float], period: int) -> float:
    """Return the step time [s] of one block: the median over whole periods of the mean step of a period.

    A plan that alternates has no typical step, only a typical period. Steps that fill no whole period are left out,
    unless there is no whole one.
    """
    periods = [fmean(step_times_s[i : i + period]) for i in range(0, len(step_times_s) - period + 1, period)]
    return median(periods) if periods else fmean(step_times_s)
