"""The `uncertain` entries of a recipe: inputs that nobody can state, as a range or as choices."""

import itertools
import math
from contextlib import suppress
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from orch.recipe.section import Section
from orch.units import DIMENSIONS


def _amount(value: object) -> tuple[float, str] | None:
    """Return a number, or a quantity in SI units, with the name of what it measures; None for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (float(value), "") if math.isfinite(value) else None
    for dimension in DIMENSIONS:
        with suppress(ValueError):
            return dimension.parse(value), dimension.name
    return None


class Unknown(Section):
    """What is known of an input that nobody can state: a range or a few choices, and why."""

    range: Annotated[list[Any], Field(min_length=2, max_length=2)] | None = Field(
        default=None,
        description="lowest and highest value, written like the value itself; drawn evenly in its logarithm",
    )
    choices: Annotated[list[Any], Field(min_length=2)] | None = Field(
        default=None, description="values of which one holds; drawn evenly"
    )
    source: Annotated[str, Field(min_length=1)] = Field(description="where the range or the choices come from")
    evidence: list[str] = Field(default=[], description="ids of published rows it was derived from")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.range is None) == (self.choices is None):
            raise ValueError("must hold exactly one of range, choices")
        if any(type(a) is type(b) and a == b for a, b in itertools.combinations(self.choices or (), 2)):
            raise ValueError("has a choice twice")
        if self.range is not None:
            low, high = (_amount(value) for value in self.range)
            if low is None or high is None or low[1] != high[1] or not 0 < low[0] < high[0]:
                raise ValueError("range must be [LOWEST, HIGHEST]: numbers above 0, or quantities of one kind")
        return self
