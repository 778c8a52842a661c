"""Sobol's points: those of scipy, moved by half a cell, and the same for ever."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import qmc

from orch.reproduce.sobol import MAX_DIMENSIONS, NUM_DRAWS, sobol


@pytest.mark.parametrize("dimensions", [1, 2, 7, MAX_DIMENSIONS])
def test_they_are_the_sequence_that_others_know(dimensions: int) -> None:
    theirs = qmc.Sobol(dimensions, scramble=False).random(NUM_DRAWS)
    np.testing.assert_array_equal(sobol(dimensions), theirs + 0.5 / NUM_DRAWS)


def test_every_coordinate_takes_the_middle_of_each_cell_once() -> None:
    middles = (np.arange(NUM_DRAWS) + 0.5) / NUM_DRAWS
    for column in sobol(MAX_DIMENSIONS).T:
        np.testing.assert_array_equal(np.sort(column), middles)


def test_the_first_points_never_change() -> None:
    np.testing.assert_array_equal(sobol(2)[:4] - 0.5 / NUM_DRAWS, [[0, 0], [0.5, 0.5], [0.75, 0.25], [0.25, 0.75]])


def test_no_input_and_too_many() -> None:
    assert sobol(0).shape == (NUM_DRAWS, 0)
    with pytest.raises(ValueError, match="17 uncertain inputs"):
        sobol(MAX_DIMENSIONS + 1)
