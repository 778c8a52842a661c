"""Fixed points that fill a cube evenly, so that a verdict is the same in every run and on every machine.

Sobol's sequence with the direction numbers of Joe and Kuo (SIAM J. Sci. Comput. 30, 2008; their file new-joe-kuo-6),
moved by half a cell so that no point lies on an edge.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NUM_DRAWS = 1024
BITS = 10
# Per dimension from the second: degree and coefficients of a primitive polynomial, and the first direction numbers.
_DIRECTIONS: tuple[tuple[int, int, tuple[int, ...]], ...] = (
    (1, 0, (1,)),
    (2, 1, (1, 3)),
    (3, 1, (1, 3, 1)),
    (3, 2, (1, 1, 1)),
    (4, 1, (1, 1, 3, 3)),
    (4, 4, (1, 3, 5, 13)),
    (5, 2, (1, 1, 5, 5, 17)),
    (5, 4, (1, 1, 5, 5, 5)),
    (5, 7, (1, 1, 7, 11, 19)),
    (5, 11, (1, 1, 5, 1, 1)),
    (5, 13, (1, 1, 1, 3, 11)),
    (5, 14, (1, 3, 5, 5, 31)),
    (6, 1, (1, 3, 3, 9, 7, 49)),
    (6, 13, (1, 1, 1, 15, 21, 21)),
    (6, 16, (1, 3, 1, 13, 27, 49)),
)
MAX_DIMENSIONS = len(_DIRECTIONS) + 1


def sobol(dimensions: int) -> NDArray[np.float64]:
    """Return the first `NUM_DRAWS` points [NUM_DRAWS, dimensions], each coordinate in (0, 1).

    Every coordinate takes each of the NUM_DRAWS middles of equal cells exactly once. Raises ValueError beyond
    `MAX_DIMENSIONS`.
    """
    if not 0 <= dimensions <= MAX_DIMENSIONS:
        raise ValueError(f"{dimensions} uncertain inputs; the sequence is known for {MAX_DIMENSIONS}")
    points = np.empty((NUM_DRAWS, dimensions))
    gray = np.arange(NUM_DRAWS) ^ (np.arange(NUM_DRAWS) >> 1)
    for column in range(dimensions):
        value = np.zeros(NUM_DRAWS, dtype=np.int64)
        for bit, direction in enumerate(_directions(column)):
            value ^= np.where(gray >> bit & 1, direction, 0)
        points[:, column] = (value + 0.5) / NUM_DRAWS
    return points


def _directions(column: int) -> list[int]:
    """Return the direction numbers of one dimension, scaled to `BITS` bits."""
    if column == 0:
        return [1 << (BITS - 1 - bit) for bit in range(BITS)]
    degree, coefficients, first = _DIRECTIONS[column - 1]
    odd = list(first)
    for bit in range(degree, BITS):
        value = odd[bit - degree] ^ (odd[bit - degree] << degree)
        for place in range(1, degree):
            if coefficients >> (degree - 1 - place) & 1:
                value ^= odd[bit - place] << place
        odd.append(value)
    return [odd[bit] << (BITS - 1 - bit) for bit in range(BITS)]
