"""What a message costs as a function of its size: a start-up, a slope, and knees where the slope changes.

Everything here is arithmetic only, so a start-up, a slope or a size may be a float or a NumPy array (one entry a
variant or a rank) and the result broadcasts; NumPy itself is never imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Number: TypeAlias = Any  # a float, or a NumPy array that broadcasts with the others


def above_zero(value: Number) -> Number:
    """Return max(value, 0) for a float or an array."""
    return (value + abs(value)) / 2


def larger(left: Number, right: Number) -> Number:
    """Return the larger of two floats or arrays, exactly (no rounding)."""
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return max(left, right)
    return left * (left >= right) + right * (left < right)


def smaller(left: Number, right: Number) -> Number:
    """Return the smaller of two floats or arrays, exactly (no rounding)."""
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return min(left, right)
    return left * (left <= right) + right * (left > right)


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds for n bytes: `start_up_s + per_byte_s * n`, the slope changing by `change` above each knee `(nbytes,
    change)`.

    No bytes cost nothing (MG-WFBP section 3: T(0) = 0); without knees T(n1) + T(n2) = T(n1 + n2) + start_up_s.
    """

    start_up_s: Number = 0.0
    per_byte_s: Number = 0.0
    knees: tuple[tuple[Number, Number], ...] = ()

    def seconds(self, nbytes: Number) -> Number:
        """Return the seconds a message of `nbytes` takes."""
        total = self.start_up_s + self.per_byte_s * nbytes
        for knee, change in self.knees:
            total = total + change * above_zero(nbytes - knee)
        return (nbytes > 0) * total

    def __add__(self, other: Curve) -> Curve:
        """Return the cost of one collective after the other, both of the same n bytes."""
        return Curve(self.start_up_s + other.start_up_s, self.per_byte_s + other.per_byte_s, self.knees + other.knees)

    def scaled(self, start_up: Number, per_byte: Number) -> Curve:
        """Return this curve with its start-up and its slopes multiplied; knees keep their sizes."""
        knees = tuple((knee, change * per_byte) for knee, change in self.knees)
        return Curve(self.start_up_s * start_up, self.per_byte_s * per_byte, knees)

    def of_part(self, part: Number) -> Curve:
        """Return the cost of handing over `part * n` bytes, as a function of n."""
        knees = tuple((knee / part, change * part) for knee, change in self.knees)
        return Curve(self.start_up_s, self.per_byte_s * part, knees)

    @staticmethod
    def fitted(points: Sequence[tuple[float, float]]) -> Curve:
        """Return the line of least squares through (size, seconds), with neither start-up nor slope below zero."""
        count = len(points)
        if not count:
            raise ValueError("a line needs a point")
        middle, level = sum(size for size, _ in points) / count, sum(seconds for _, seconds in points) / count
        spread = sum((size - middle) ** 2 for size, _ in points)
        slope = sum((size - middle) * (seconds - level) for size, seconds in points) / spread if spread else 0.0
        slope = min(max(0.0, slope), level / middle if middle > 0 else 0.0)
        return Curve(max(0.0, level - slope * middle), slope)

    @staticmethod
    def through(points: Mapping[float, float]) -> Curve:
        """Return the piecewise linear curve through measured points: size in bytes -> seconds, at least two sizes.

        A larger message never costs less, so sizes between which the times fall (noise) get their mean: the rising times
        that are nearest in least squares (pool adjacent violators, Barlow et al., Statistical Inference under Order
        Restrictions, 1972). Below the first
        point the first piece goes on, but never under zero; above the last the last piece goes on or, where that is
        flat, the mean slope from the start-up.
        """
        if len(points) < 2 or min(points) <= 0 or min(points.values()) < 0:
            raise ValueError("a table needs at least two sizes above zero, and no negative times")
        sizes = sorted(points)
        times = _rising([points[size] for size in sizes])
        slopes = [(times[i + 1] - times[i]) / (sizes[i + 1] - sizes[i]) for i in range(len(sizes) - 1)]
        start_up = max(0.0, times[0] - slopes[0] * sizes[0])
        first = (times[0] - start_up) / sizes[0]
        beyond = slopes[-1] if slopes[-1] > 0 else (times[-1] - start_up) / sizes[-1]
        slopes = [first, *slopes, beyond]
        knees = [(size, slopes[i + 1] - slopes[i]) for i, size in enumerate(sizes)]
        return Curve(start_up, first, tuple(knee for knee in knees if knee[1] != 0.0))


def _rising(values: Sequence[float]) -> list[float]:
    pools: list[tuple[float, int]] = []  # mean, how many
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (high, before), (low, after) = pools[-2:]
            pools[-2:] = [((high * before + low * after) / (before + after), before + after)]
    return [mean for mean, count in pools for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Fastest:
    """The cheapest of several curves at every size: a library that picks its algorithm by message size."""

    options: tuple[Curve, ...]

    @property
    def start_up_s(self) -> Number:
        """Start-up of the option that small messages take, in seconds."""
        least = self.options[0].start_up_s
        for option in self.options[1:]:
            least = smaller(least, option.start_up_s)
        return least

    def seconds(self, nbytes: Number) -> Number:
        """Return the seconds a message of `nbytes` takes."""
        least = self.options[0].seconds(nbytes)
        for option in self.options[1:]:
            least = smaller(least, option.seconds(nbytes))
        return least
