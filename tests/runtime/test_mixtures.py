"""Mixtures of one engine: random plans, layouts and routings, none of which waits for ever or computes something else."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.runtime.test_mixture import Case, check_equal, train_all
from tests.runtime.worlds import run


def drawn_cases(number: int, seed: int, world: int = 4) -> list[Case]:
    """Random experts, choices, capacities, tokens, routings, cuts, layouts and stacks."""
    random = Random(seed)
    cases = []
    for _ in range(number):
        experts = random.choice([2, 4, 6, 8])
        spread_over = random.choice([r for r in (1, 2, 4, 8) if experts % r == 0 == world % r])
        stack = random.choice(
            [(), ("fsmoe",), ("fsmoe", "wfbp"), ("pipemoe", "dear"), ("naive-moe",), ("tutel", "mg-wfbp"),
             ("fastermoe", "wfbp")]
        )  # fmt: skip
        knobs: dict[str, Any] = {
            "fsmoe": {"smallest": f"{random.choice([4, 64, 1024])}B", "degree": random.choice([None, 1, 3, 5])},
            "schemoe": {
                "order": random.choice(["optsche", "breadth", "serial"]),
                "degree": random.choice([None, 2, 5]),
            },
            "fastermoe": {"group": random.choice([1, 2])},
        }
        schedules = {"fsmoe", "pipemoe", "naive-moe", "tutel", "fastermoe"}
        scheduled = [*stack, *([] if schedules & set(stack) else ["schemoe"])]
        ways = [[]] if "fastermoe" in stack else [["pipe-a2a"], ["two-level-a2a"], ["pairwise-a2a"], []]
        way = random.choice(ways)
        # What relays pass on must have sizes that they know.
        sized = [] if way == ["two-level-a2a"] else [["zipccl-rows"]]
        stack = (*scheduled, *way, *random.choice([[], [], ["int8-rows"], ["bfp8-rows"], *sized]))
        cases.append(
            Case(
                experts,
                random.choice([1, 2]),
                random.choice([None, None, 0.5, 1.0, 1.3]),
                random.choice([1, 2, 3, 7, 13]),
                random.choice(["learned", "first"]),
                random.random() < 0.3,
                random.choice([1, 2, 3, 5, 8]),
                random.choice([1, 2, 3, 4, 8]),
                kind=random.choice(["softmax", "softmax", "cosine", "expert-choice", "soft"]),
                spread=spread_over,
                stack=stack,
                knobs=knobs,
                nodes=random.choice([1, 2, 2]),
            )
        )
    return cases


def test_no_random_plan_waits_for_ever_or_computes_something_else() -> None:
    cases = drawn_cases(12, seed=3)
    found = list(zip(*run(4, train_all, cases), strict=True))
    assert len(found) == len(cases)
    for case, ranks in zip(cases, found, strict=True):
        check_equal(case, list(ranks))
