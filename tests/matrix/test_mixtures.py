"""Mixtures whose experts are shared out and cut into slices, in eight processes: every shape equals the layer of one process."""

import pytest

from tests.runtime.test_mixture import Case, compare, train_all
from tests.runtime.test_mixtures import drawn_cases
from tests.runtime.worlds import run

S1 = {"parm": {"schedule": "s1"}}
CASES = [
    Case(experts=4, spread=spread, slices=slices, capacity=capacity, stack=("parm", "wfbp"), knobs=S1, routing=routing)
    for spread, slices in ((2, 2), (2, 4), (4, 2))
    for capacity, routing in ((None, "learned"), (1.25, "learned"), (None, "first"))
]


@pytest.mark.long
def test_every_shape_of_shares_and_slices_equals_the_layer_of_one_process() -> None:
    found = list(zip(*run(8, train_all, CASES), strict=True))
    assert len(found) == len(CASES)
    for case, ranks in zip(CASES, found, strict=True):
        compare(case, list(ranks))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("world", "number"), [(2, 10), (4, 20), (8, 10)])
def test_two_hundred_random_plans_and_routings_neither_wait_for_ever_nor_compute_something_else(
    world: int, number: int, seed: int
) -> None:
    cases = drawn_cases(number, 100 + seed, world)
    found = list(zip(*run(world, train_all, cases), strict=True))
    assert len(found) == number
    for case, ranks in zip(cases, found, strict=True):
        compare(case, list(ranks))
