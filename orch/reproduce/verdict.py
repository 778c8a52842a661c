"""The rule that turns draws into an outcome. Two axes, never merged: this is the outcome; evidence is `lineage`'s.

Source: DESIGN section 7 of this project, as docs/claims.md states it. Per cell: v published, v0 no effect, tolerance
tau on |log ours/published|. p_in is the share of draws inside tau, p_side the share beyond v0 on v's side by more than
1 %. Everything is a share of fixed draws, so an outcome never flips between runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SIDE = 0.01  # an effect counts when it goes beyond no effect by more than this
LITTLE, HALF = 0.05, 0.50
ABSOLUTE = 0.15  # absolute times that are further off make a right ratio "ratio only"
FLOOR = 0.05
_TAU = {
    "table": 0.05,
    "log": 0.05,
    "repository": 0.05,
    "derived": 0.05,
    "plot": 0.10,
    "recollection": 0.15,
    "guess": 0.15,
}
CAPPED = ("recollection", "guess")


class Outcome(StrEnum):
    """What became of a claim, best first; the last four have no place in that order."""

    REPRODUCED = "reproduced"
    RATIO_ONLY = "ratio only"
    CONSISTENT = "consistent"
    SMALLER = "smaller effect"
    LARGER = "larger effect"
    INCONCLUSIVE = "inconclusive"
    CONTRADICTED = "contradicted"
    INVALID = "invalid"
    NOT_RUNNABLE = "not runnable here"
    NOT_JUDGED = "not yet judged"


@dataclass(frozen=True)
class Published:
    """A published number: its value, how it came to us, the digits it was written with, and its evidence ids."""

    value: float
    source: str
    text: str = ""
    ids: tuple[str, ...] = ()

    def tolerance(self, no_effect: float | None) -> float:
        """Return tau on |log ours/published|: by provenance, and never more than half the published effect.

        A number that publishes no effect at all (an equality) has no half of it.
        """
        rounded = self.source in ("text", "abstract")
        tau = (
            max(FLOOR, half_unit(self.text) / abs(self.value))
            if rounded and self.value
            else _TAU.get(self.source, FLOOR)
        )
        effect = 0.0 if no_effect is None else abs(math.log(self.value / no_effect))
        return min(tau, effect / 2) if effect > 0 else tau


@dataclass(frozen=True)
class Verdict:
    """An outcome and the shares it rests on, in words for people."""

    outcome: Outcome
    why: str
    p_in: float | None = None
    p_side: float | None = None
    tau: float | None = None


def half_unit(text: str) -> float:
    """Return half a unit of the last digit of a number as it was written: 0.005 for `1.83`, 0.5 for `4`."""
    digits, _, exponent = text.lower().partition("e")
    decimals = len(digits.partition(".")[2])
    return 0.5 * 10.0 ** (int(exponent or 0) - decimals) if digits.strip("+-").replace(".", "", 1).isdigit() else 0.0


def judge(
    ours: Array,
    published: Sequence[Published],
    no_effect: float | None,
    coordinates: Mapping[str, Array] | None = None,
    absolute_off: float | None = None,
) -> Verdict:
    """Return the verdict on a number, or on a range judged at both ends.

    `ours` [draws, numbers]; `coordinates` are the uncertain inputs by path, each [draws]; `absolute_off` is the largest
    |log ours/published| of the absolute times, None where none were published.
    """
    ours = ours.reshape(len(ours), len(published))
    taus = [number.tolerance(no_effect) for number in published]
    values = np.array([number.value for number in published])
    inside = np.all(np.abs(np.log(ours / values)) <= np.array(taus), axis=1)
    side = np.all([_beyond(ours[:, i], value, no_effect) for i, value in enumerate(values)], axis=0)
    p_in, p_side = float(inside.mean()), float(side.mean())
    found = Verdict(Outcome.CONSISTENT, "", p_in, p_side, min(taus))
    if p_side <= LITTLE:
        return replace(found, outcome=Outcome.CONTRADICTED, why=f"{p_side:.0%} of the draws show the effect at all")
    if p_side < 1 - LITTLE:
        return replace(found, outcome=Outcome.INCONCLUSIVE, why=_moves_most(side, coordinates or {}, p_side))
    if p_in >= HALF:
        return _reproduced(found, absolute_off)
    if p_in > LITTLE:
        return replace(found, why=f"{p_in:.0%} of the draws within {found.tau:.1%}: too uncertain to say more")
    return _other_size(found, ours, values, no_effect)


def judge_statement(holds: Array, coordinates: Mapping[str, Array] | None = None) -> Verdict:
    """Return the verdict on a statement that holds in a draw or does not; `holds` [draws] is 0 or 1."""
    share = float(holds.mean())
    found = Verdict(Outcome.REPRODUCED, f"it holds in {share:.0%} of the draws", share, share)
    if share <= LITTLE:
        return replace(found, outcome=Outcome.CONTRADICTED)
    if share < 1 - LITTLE:
        return replace(found, outcome=Outcome.INCONCLUSIVE, why=_moves_most(holds > 0, coordinates or {}, share))
    return found


def capped(verdict: Verdict, reason: str) -> Verdict:
    """Return `verdict`, at best consistent: it rests on `reason`, which nobody can look up."""
    if verdict.outcome not in (Outcome.REPRODUCED, Outcome.RATIO_ONLY):
        return verdict
    return replace(verdict, outcome=Outcome.CONSISTENT, why=f"{verdict.why}; no more than consistent: {reason}")


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict that a claim over several cells has: the one furthest from reproduced."""
    order = list(Outcome)
    return max(verdicts, key=lambda verdict: order.index(verdict.outcome))


def _beyond(ours: Array, value: float, no_effect: float | None) -> NDArray[np.bool_]:
    """Return which draws lie beyond no effect, on the published side; all where the number has no side."""
    if no_effect is None or value == no_effect:
        return np.ones(len(ours), dtype=bool)
    distance = np.log(ours / no_effect)
    result: NDArray[np.bool_] = (distance if value > no_effect else -distance) > SIDE
    return result


def _reproduced(found: Verdict, absolute_off: float | None) -> Verdict:
    words = f"{found.p_in:.0%} of the draws within {found.tau:.1%}"
    if absolute_off is None:
        return replace(found, outcome=Outcome.REPRODUCED, why=f"{words}; no absolute times are published")
    off = math.expm1(absolute_off)
    if absolute_off > math.log1p(ABSOLUTE):
        return replace(found, outcome=Outcome.RATIO_ONLY, why=f"{words}, but absolute times are off by up to {off:.0%}")
    return replace(found, outcome=Outcome.REPRODUCED, why=f"{words}, absolute times within {off:.0%}")


def _other_size(found: Verdict, ours: Array, values: Array, no_effect: float | None) -> Verdict:
    """Return smaller or larger effect, by the number that is furthest off, with the share of the effect."""
    logs = np.log(np.median(ours, axis=0) / values)
    place = int(np.abs(logs).argmax())
    value, middle = float(values[place]), float(np.median(ours[:, place]))
    if no_effect is None or value == no_effect:
        outcome = Outcome.LARGER if middle > value else Outcome.SMALLER
        return replace(found, outcome=outcome, why=f"{middle / value:.0%} of the published {_number(value)}")
    share = math.log(middle / no_effect) / math.log(value / no_effect)
    outcome = Outcome.LARGER if share > 1 else Outcome.SMALLER
    return replace(found, outcome=outcome, why=f"{share:.0%} of the effect ({_number(middle)} for {_number(value)})")


def _moves_most(side: NDArray[np.bool_], coordinates: Mapping[str, Array], share: float) -> str:
    """Say which input, once known, would decide most: how the share differs between its low and its high half."""
    words = f"{share:.0%} of the draws show the effect"
    moved = {
        path: abs(float(side[values < 0.5].mean()) - float(side[values >= 0.5].mean()))
        for path, values in coordinates.items()
    }
    if not moved:
        return words
    path = max(moved, key=lambda name: moved[name])
    return f"{words}; to know {path} would decide most (it moves that by {moved[path]:.0%})"


def _number(value: Any) -> str:
    return f"{value:.4g}"
