"""Ranges and choices of inputs that nobody can state: what cannot be drawn from is refused where it is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from orch.recipe.unknown import Unknown
from tests.recipe.conftest import GOOD

NO_RANGE = "range must be [LOWEST, HIGHEST]: numbers above 0, or quantities of one kind"


@pytest.mark.parametrize(
    ("path", "known", "line"),
    [
        ("train.steps", "range: [5, 2]", NO_RANGE),
        ("train.steps", "range: [2, 2]", NO_RANGE),
        ("train.steps", "range: [-5, foo]", NO_RANGE),
        ("train.steps", "range: [true, 3]", NO_RANGE),
        ("train.steps", "range: [null, 3]", NO_RANGE),
        ("train.optimizer.adamw.lr", "range: [0, 1]", NO_RANGE),
        ("train.optimizer.adamw.lr", "range: [.nan, 1]", NO_RANGE),
        ("train.optimizer.adamw.lr", "range: [1, .inf]", NO_RANGE),
        ("cluster.links.inter.alpha", "range: [1us, 2MiB]", NO_RANGE),
        ("cluster.links.inter.alpha", "range: [1, 2us]", NO_RANGE),
        ("cluster.links.inter.alpha", "range: [2ms, 5us]", NO_RANGE),
        ("train.steps", "choices: [5, 5]", "has a choice twice"),
    ],
)
def test_what_cannot_be_drawn_from_is_refused(fault: Callable[..., str], path: str, known: str, line: str) -> None:
    assert line in fault(GOOD, f"uncertain={{{path}: {{{known}, source: x}}}}")


@given(st.floats(1e-9, 1e9), st.floats(1e-9, 1e9), st.sampled_from(["", "us", "MiB", "GB/s", "ns/B", "TFLOP/s", "%"]))
def test_a_range_rises_in_its_own_unit(low: float, high: float, unit: str) -> None:
    ends = [low, high] if not unit else [f"{low!r}{unit}", f"{high!r}{unit}"]
    if low < high:
        assert Unknown(range=ends, source="x").range == ends
    else:
        with pytest.raises(ValidationError, match="range must be"):
            Unknown(range=ends, source="x")
