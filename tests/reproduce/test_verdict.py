"""The rule, against cases worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from orch.reproduce.sobol import NUM_DRAWS
from orch.reproduce.verdict import Outcome, Published, Verdict, capped, half_unit, judge, judge_statement, worst

ONE = 1.0


def draws(*parts: tuple[float, float]) -> np.ndarray:
    """Return draws of which each share has one value."""
    counts = [round(share * NUM_DRAWS) for _, share in parts]
    assert sum(counts) == NUM_DRAWS
    return np.repeat([value for value, _ in parts], counts)


def table(value: float) -> list[Published]:
    return [Published(value, "table")]


@pytest.mark.parametrize(
    ("value", "source", "text", "no_effect", "tau"),
    [
        (1.5, "table", "", 1.0, 0.05),
        (1.5, "log", "", 1.0, 0.05),
        (1.5, "repository", "", 1.0, 0.05),
        (1.5, "plot", "", 1.0, 0.10),
        (2.0, "recollection", "", 1.0, 0.15),
        (1.83, "abstract", "1.83", 1.0, 0.05),  # half a unit is 0.005 / 1.83, below the floor
        (4.0, "text", "4", 1.0, 0.125),  # half a unit of the last digit: 0.5 / 4
        (1.3, "text", "1.3", 1.0, 0.05),
        (1.04, "table", "", 1.0, math.log(1.04) / 2),  # never more than half the published effect
        (1.2, "recollection", "", 1.0, math.log(1.2) / 2),
        (0.8, "recollection", "", 1.0, math.log(1.25) / 2),
        (1.0, "abstract", "1.0", 1.0, 0.05),  # an equality publishes no effect to take half of
        (0.25, "text", "0.25", None, 0.05),  # an absolute number has none either
        (0.2, "text", "0.2", None, 0.25),
    ],
)
def test_tolerance(value: float, source: str, text: str, no_effect: float | None, tau: float) -> None:
    assert Published(value, source, text).tolerance(no_effect) == pytest.approx(tau)


@pytest.mark.parametrize(("text", "half"), [("1.83", 0.005), ("4", 0.5), ("1.70", 0.005), ("2e3", 500.0), ("", 0.0)])
def test_half_a_unit_of_the_last_digit(text: str, half: float) -> None:
    assert half_unit(text) == pytest.approx(half)


@pytest.mark.parametrize(
    ("parts", "published", "outcome"),
    [
        ([(1.5, 1.0)], 1.5, Outcome.REPRODUCED),
        ([(1.5, 0.5), (1.7, 0.5)], 1.5, Outcome.REPRODUCED),  # half the draws are enough
        ([(1.5, 0.25), (1.7, 0.75)], 1.5, Outcome.CONSISTENT),
        ([(1.5, 1 / 32), (1.7, 31 / 32)], 1.5, Outcome.LARGER),  # 3 % are not
        ([(1.7, 1.0)], 1.5, Outcome.LARGER),
        ([(1.2, 1.0)], 1.5, Outcome.SMALLER),
        ([(1.5 * math.exp(0.0499), 1.0)], 1.5, Outcome.REPRODUCED),
        ([(1.5 * math.exp(0.0501), 1.0)], 1.5, Outcome.LARGER),
        ([(0.9, 1.0)], 1.5, Outcome.CONTRADICTED),
        ([(1.005, 1.0)], 1.5, Outcome.CONTRADICTED),  # half a percent is no effect
        ([(1.02, 1.0)], 1.5, Outcome.SMALLER),
        ([(1.5, 1 / 32), (0.9, 31 / 32)], 1.5, Outcome.CONTRADICTED),
        ([(1.5, 0.5), (0.9, 0.5)], 1.5, Outcome.INCONCLUSIVE),
        ([(1.5, 0.9375), (0.9, 0.0625)], 1.5, Outcome.INCONCLUSIVE),  # 93.75 % is not more than 95 %
        ([(1.5, 0.96875), (0.9, 0.03125)], 1.5, Outcome.REPRODUCED),
        ([(0.8, 1.0)], 0.8, Outcome.REPRODUCED),  # a published loss has its side below 1
        ([(1.2, 1.0)], 0.8, Outcome.CONTRADICTED),
        ([(0.6, 1.0)], 0.8, Outcome.LARGER),  # a larger loss
    ],
)
def test_one_number(parts: list[tuple[float, float]], published: float, outcome: Outcome) -> None:
    assert judge(draws(*parts), table(published), ONE).outcome is outcome


def test_a_lucky_ratio_with_wrong_absolute_times_is_a_ratio_only() -> None:
    ours = draws((1.5, 1.0))
    right, wrong = math.log(1.14), math.log(1.16)
    assert judge(ours, table(1.5), ONE, absolute_off=right).outcome is Outcome.REPRODUCED
    lucky = judge(ours, table(1.5), ONE, absolute_off=wrong)
    assert lucky.outcome is Outcome.RATIO_ONLY
    assert "off by up to 16%" in lucky.why


def test_times_that_were_never_published_are_said_to_be() -> None:
    assert "no absolute times are published" in judge(draws((1.5, 1.0)), table(1.5), ONE).why


def test_the_share_of_the_effect() -> None:
    # log 1.2 / log 1.44 is one half.
    assert judge(draws((1.2, 1.0)), table(1.44), ONE).why.startswith("50% of the effect")
    assert judge(draws((1.44, 1.0)), table(1.2), ONE).why.startswith("200% of the effect")


def test_an_absolute_number_has_a_size_and_no_side() -> None:
    assert judge(draws((0.25, 1.0)), table(0.25), None).outcome is Outcome.REPRODUCED
    assert judge(draws((0.5, 1.0)), table(0.25), None).outcome is Outcome.LARGER
    assert judge(draws((0.1, 1.0)), table(0.25), None).outcome is Outcome.SMALLER


def test_a_range_is_judged_at_both_ends() -> None:
    published = [Published(1.1, "table"), Published(1.7, "table")]
    both = np.stack([draws((1.1, 1.0)), draws((1.7, 1.0))], axis=1)
    assert judge(both, published, ONE).outcome is Outcome.REPRODUCED
    one = np.stack([draws((1.1, 1.0)), draws((2.0, 1.0))], axis=1)
    assert judge(one, published, ONE).outcome is Outcome.LARGER
    lost = np.stack([draws((0.95, 1.0)), draws((1.7, 1.0))], axis=1)
    assert judge(lost, published, ONE).outcome is Outcome.CONTRADICTED


def test_inconclusive_names_the_input_that_would_decide_most() -> None:
    ours = draws((1.5, 0.5), (0.9, 0.5))
    deciding = (np.arange(NUM_DRAWS) + 0.5) / NUM_DRAWS
    idle = np.tile([0.25, 0.75], NUM_DRAWS // 2)
    why = judge(ours, table(1.5), ONE, {"links.idle": idle, "links.beta": deciding}).why
    assert "links.beta would decide most (it moves that by 100%)" in why


@pytest.mark.parametrize(
    ("share", "outcome"),
    [
        (1.0, "reproduced"),
        (0.96875, "reproduced"),
        (0.5, "inconclusive"),
        (0.03125, "contradicted"),
        (0.0, "contradicted"),
    ],
)
def test_a_statement_holds_or_does_not(share: float, outcome: str) -> None:
    assert str(judge_statement(draws((1.0, share), (0.0, 1 - share))).outcome) == outcome


def test_what_nobody_can_look_up_is_at_best_consistent() -> None:
    good = judge(draws((1.5, 1.0)), table(1.5), ONE)
    assert capped(good, "the number is a recollection").outcome is Outcome.CONSISTENT
    bad = judge(draws((0.9, 1.0)), table(1.5), ONE)
    assert capped(bad, "the number is a recollection") == bad


def test_a_claim_over_several_cells_is_its_worst() -> None:
    found = [Verdict(Outcome.REPRODUCED, ""), Verdict(Outcome.LARGER, ""), Verdict(Outcome.CONSISTENT, "")]
    assert worst(found).outcome is Outcome.LARGER
