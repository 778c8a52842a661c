"""Differences that mean something: paired log ratios per block with a t interval, and orders of blocks that are fair.

Blocks are paired because a machine drifts: what slows one stack in a block slows its neighbours. A t interval on log
ratios covers what it promises from 3 blocks on; a bootstrap of the median of 3 covers 75 % instead of 95 %. SciPy
(extra `run`) is loaded when an interval is asked for, not before.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median, stdev

METHOD = "paired t on log ratios per block"
APART = "Welch's t on log times of blocks that were not paired"
POWER = 0.8  # a gain counts as detectable when four experiments of five would show it
MOST_BLOCKS = 100_000  # beyond this the answer is "hopeless", not a number
OUTLIER = 3.5  # modified z-score of Iglewicz and Hoaglin (1993)


@dataclass(frozen=True, slots=True)
class Summary:
    """Times [s] of one stack over its blocks: median, and interval of the geometric mean (None for one block)."""

    median: float
    lo: float | None
    hi: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Speedup:
    """How much faster a stack is than `over`: above 1 is faster.

    `lo` and `hi` (None for one block) hold at `level` for all `comparisons` with the baseline together. `logs` are the
    log ratios, a block each, or where blocks were not `paired` the logs of this stack's times below the baseline's mean.
    """

    over: str
    median: float
    lo: float | None
    hi: float | None
    level: float
    logs: tuple[float, ...]
    comparisons: int = 1
    how: str = METHOD

    @property
    def n(self) -> int:
        """Number of blocks."""
        return len(self.logs)

    @property
    def method(self) -> str:
        """How the interval was made."""
        return self.how if self.comparisons == 1 else f"{self.how}, Bonferroni over {self.comparisons}"

    @property
    def distinguishable(self) -> bool:
        """Whether the interval leaves out 1."""
        return self.lo is not None and self.hi is not None and not self.lo <= 1.0 <= self.hi

    @property
    def blocks_needed_for_1_percent(self) -> int | None:
        """Blocks that would show a gain of 1 % at this noise; None beyond 100,000, or for one block."""
        if self.n < 2:
            return None
        return blocks_needed(stdev(self.logs), 0.01, _each(self.level, self.comparisons))

    @property
    def outliers(self) -> tuple[int, ...]:
        """Numbers of blocks, from 0, that lie far from the others; they are named, never dropped."""
        return outliers(self.logs)

    def to_json(self) -> dict[str, float | int | str | bool | None]:
        """Return what `orch run --json` prints of a speedup."""
        keys = ("over", "median", "lo", "hi", "level", "n", "method", "distinguishable")
        return {key: getattr(self, key) for key in keys}

    def __str__(self) -> str:
        needed = self.blocks_needed_for_1_percent
        if self.distinguishable:
            text = f"{self.median:.2f} [{self.lo:.2f}, {self.hi:.2f}], n={self.n}"
        elif self.lo is None:
            text = f"not distinguishable (n={self.n}; an interval needs at least 2 blocks)"
        elif needed is None:
            text = f"not distinguishable (n={self.n}; a 1 % gain would need more than {MOST_BLOCKS:,} blocks)"
        else:
            text = f"not distinguishable (n={self.n}; a 1 % gain would need about {needed} blocks)"
        if self.outliers:
            text += f"; far from the others: block {', '.join(str(block + 1) for block in self.outliers)}"
        return text


def compare(
    baseline_times: Sequence[float],
    stack_times: Sequence[float],
    level: float = 0.95,
    comparisons: int = 1,
    over: str = "baseline",
) -> Speedup:
    """Return the speedup of a stack over a baseline from times [s] of the same blocks, in the same order.

    `comparisons` stacks meet the baseline: each interval is widened (Bonferroni) so that all hold together at `level`.
    Raises ValueError for times that are not positive or not paired.
    """
    if len(baseline_times) != len(stack_times):
        raise ValueError(
            f"blocks are not paired: {len(baseline_times)} of the baseline, {len(stack_times)} of the stack"
        )
    if comparisons < 1:
        raise ValueError(f"comparisons counts the stacks that meet the baseline; found {comparisons}")
    pairs = zip(_valid(baseline_times), _valid(stack_times), strict=True)
    logs = tuple(math.log(base / own) for base, own in pairs)
    middle, lo, hi = _interval(logs, _each(level, comparisons))
    return Speedup(over, middle, lo, hi, level, logs, comparisons)


def compare_apart(
    baseline_times: Sequence[float],
    stack_times: Sequence[float],
    level: float = 0.95,
    comparisons: int = 1,
    over: str = "baseline",
) -> Speedup:
    """Return the speedup from times [s] of blocks that share nothing, such as those of two runs (Welch 1947).

    The ratio is that of the medians. The interval knows the noise inside each set of blocks only. None of the blocks is
    paired, so none is named as an outlier of a pair. Raises ValueError for times that are not positive.
    """
    base, own = ([math.log(time) for time in _valid(times)] for times in (baseline_times, stack_times))
    middle, each = math.exp(median(base) - median(own)), _each(level, comparisons)
    logs = tuple(fmean(base) - log for log in own)
    if len(base) < 2 or len(own) < 2:
        return Speedup(over, middle, None, None, level, logs, comparisons, APART)
    parts = [stdev(found) ** 2 / len(found) for found in (base, own)]
    error = sum(parts)
    weights = sum(part**2 / (len(found) - 1) for part, found in zip(parts, (base, own), strict=True))
    half = _t((1 + each) / 2, error**2 / weights) * math.sqrt(error) if weights > 0 else 0.0
    mean = fmean(base) - fmean(own)
    lo, hi = min(math.exp(mean - half), middle), max(math.exp(mean + half), middle)
    return Speedup(over, middle, lo, hi, level, logs, comparisons, APART)


def compare_all(times: Mapping[str, Sequence[float]], baseline: str, level: float = 0.95) -> dict[str, Speedup]:
    """Return the speedup of every other stack over `baseline`, corrected for their number. `times`: stack -> seconds a
    block.
    """
    others = [name for name in times if name != baseline]
    return {name: compare(times[baseline], times[name], level, len(others), baseline) for name in others}


def summary(times: Sequence[float], level: float = 0.95) -> Summary:
    """Return the median of one stack's block times [s] and the t interval of their geometric mean."""
    middle, lo, hi = _interval([math.log(time) for time in _valid(times)], level)
    return Summary(middle, lo, hi, len(times))


def outliers(values: Sequence[float]) -> tuple[int, ...]:
    """Return the positions of values far from the others: modified z-score (of the median deviation) above 3.5.

    Fewer than 5 values have no outliers: nobody can say which of three is the odd one.
    """
    if len(values) < 5:
        return ()
    middle = median(values)
    spread = median(abs(value - middle) for value in values)
    # Where more than half the values agree exactly, the mean deviation stands in (Iglewicz and Hoaglin).
    scale = spread / 0.6745 if spread > 0 else 1.2533 * fmean(abs(value - middle) for value in values)
    least = max(OUTLIER * scale, 1e-9)  # anything nearer is rounding
    return tuple(position for position, value in enumerate(values) if abs(value - middle) > least)


def blocks_needed(log_deviation: float, gain: float = 0.01, level: float = 0.95) -> int | None:
    """Return how many blocks show a relative `gain` at `level` in four experiments of five; None beyond 100,000.

    `log_deviation` is the standard deviation of the log ratios per block.
    """
    if log_deviation == 0.0:
        return 2
    wanted = math.log1p(gain) / log_deviation

    def enough(blocks: int) -> bool:
        return (_t((1 + level) / 2, blocks - 1) + _t(POWER, blocks - 1)) / math.sqrt(blocks) <= wanted

    # The normal quantiles give the least it can be; t's wider tails add a few.
    normal = NormalDist()
    least = math.ceil(((normal.inv_cdf((1 + level) / 2) + normal.inv_cdf(POWER)) / wanted) ** 2)
    if least > MOST_BLOCKS:
        return None
    blocks = max(2, least)
    while not enough(blocks):
        blocks += 1
    return blocks


def block_orders(stacks: Sequence[str], blocks: int, seed: int) -> list[list[str]]:
    """Return, for each block, the order in which the stacks run: a balanced shuffle, the same for the same seed.

    In every run of as many blocks as stacks each stack stands once in every position; over the left-over blocks at most
    once. Who follows whom is balanced too (Williams 1949): exactly so for an even number of stacks, and over two runs
    for an odd one.
    """
    chance = random.Random(seed)
    count = len(stacks)
    steps = [(place + 1) // 2 * (1 if place % 2 else -1) for place in range(count)]  # 0, 1, -1, 2, -2, ...: all differ
    orders: list[list[str]] = []
    while len(orders) < blocks and count:
        mirrored = -1 if count % 2 and (len(orders) // count) % 2 else 1
        if mirrored == 1:  # the mirror image completes the square it belongs to, so it keeps that square's names
            names = list(stacks)
            chance.shuffle(names)
        rows = list(range(count))
        chance.shuffle(rows)
        orders += [[names[(row + mirrored * step) % count] for step in steps] for row in rows]
    return orders[:blocks]


def _each(level: float, comparisons: int) -> float:
    """Return the level of each of several intervals that hold together at `level` (Bonferroni)."""
    return 1.0 - (1.0 - level) / comparisons


def _interval(logs: Sequence[float], level: float) -> tuple[float, float | None, float | None]:
    """Return exp of the median and of the t interval of the mean, stretched to hold the median (which never loses
    coverage).
    """
    middle = math.exp(median(logs))
    if len(logs) < 2:
        return middle, None, None
    half = _t((1 + level) / 2, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    mean = fmean(logs)
    return middle, min(math.exp(mean - half), middle), max(math.exp(mean + half), middle)


def _t(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))


def _valid(times: Sequence[float]) -> Sequence[float]:
    if not times:
        raise ValueError("no blocks were measured")
    wrong = next((block for block, time in enumerate(times) if not (math.isfinite(time) and time > 0)), None)
    if wrong is not None:
        raise ValueError(f"block {wrong} took {times[wrong]} s; a time is finite and above 0")
    return times
