"""Mixtures whose experts are shared out and cut into slices, and whose samples are shared, in eight processes: every shape equals
the model of one process.
"""

from random import Random

import pytest

from tests.runtime import sharing
from tests.runtime.test_mixture import Case, check_equal, train_all
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
        check_equal(case, list(ranks))


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
        check_equal(case, list(ranks))


SHAPES = [(8, 2, 4), (8, 4, 2), (8, 2, 2), (8, 4, 4), (8, 4, 1), (8, 1, 2)]


def shared_cases(number: int, seed: int) -> list[sharing.Case]:
    """Random shapes of shared samples, experts and slices; routings, capacities and schedules."""
    random = Random(seed)
    cases = []
    while len(cases) < number:
        tensor, slices, spread = (random.choice([1, 2, 4]), random.choice([1, 2]), random.choice([2, 4]))
        # Rows gathered for slices are planned only, which costs may call for.
        schedule = random.choice(["s1", "s2"] if slices > 1 else ["s1", "s2", "auto", "plain"])
        kind = random.choice(["softmax", "softmax", "sigmoid", "cosine"])
        if 8 % (slices * spread) or (tensor == 1 and schedule != "s1"):
            continue
        cases.append(
            sharing.Case(
                tensor, slices, spread, schedule, random.choice([None, 1]) if schedule == "s2" else None,
                random.choice([None, None, 0.7, 1.25]),
                random.choice([4, 8]), random.choice([1, 2]), random.choice([4, 8, 12]), random.random() < 0.3, kind,
                random.choice(["sort", "einsum"]), "learned" if kind == "cosine" else random.choice(["learned", "first"]),
                stack=(random.choice(["wfbp", "mg-wfbp", "dear"]),),
            )
        )  # fmt: skip
    return cases


@pytest.mark.long
@pytest.mark.parametrize("schedule", ["s1", "s2"])
def test_every_shape_of_shared_samples_and_slices_equals_one_process(schedule: str) -> None:
    cases = [
        sharing.Case(tensor, slices, 8 // slices, schedule, capacity=capacity, experts=8, gated=slices == 2)
        for _, tensor, slices in SHAPES
        for capacity in (None, 1.25)
        if 8 // slices > 1
    ]
    found = list(zip(*run(8, sharing.train_all, cases), strict=True))
    for case, ranks in zip(cases, found, strict=True):
        sharing.check_equal(case, list(ranks))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_random_shapes_of_shared_samples_equal_one_process(seed: int) -> None:
    cases = shared_cases(12, seed)
    found = list(zip(*run(8, sharing.train_all, cases), strict=True))
    for case, ranks in zip(cases, found, strict=True):
        sharing.check_equal(sharing.decided(case, list(ranks)), list(ranks))
