"""What a seed of a run trains, in order: known before it begins, so that a run can be taken up at any place of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orch.experiment.statistics import block_orders
from orch.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Work:
    """A stretch of one stack's training; `block` is None where it is not timed.

    `ends` counts the steps of the stack's training when it is done, `judgements` how often the stack has been judged
    on held-out data by then.
    """

    stack: str
    block: int | None
    steps: int
    ends: int
    judgements: int


def schedule(recipe: Recipe, seed: int) -> list[Work]:
    """Return the works of one seed: a first judgement, warm-ups, blocks in a balanced shuffle, then what is left."""
    measure, names = recipe.measure, list(recipe.stacks)
    works = [Work(name, None, 0, 0, 1) for name in names]
    if measure.warmup:
        works += [Work(name, None, measure.warmup, measure.warmup, 1) for name in names]
    for number, order in enumerate(block_orders(names, measure.blocks, seed)):
        ends = measure.warmup + (number + 1) * measure.steps
        works += [Work(name, number, measure.steps, ends, number + 2) for name in order]
    ends, judgements, length = measure.total, measure.blocks + 1, measure.steps
    while longer := [name for name in names if recipe.training_steps(name) > ends]:
        judgements += 1
        for name in longer:
            steps = min(length, recipe.training_steps(name) - ends)
            works.append(Work(name, None, steps, ends + steps, judgements))
        ends += length
    return works


def whole_steps(works: Sequence[Work], stack: str, steps: int) -> int:
    """Return how many of a stack's first `steps` steps fill whole works."""
    return max((work.ends for work in works if work.stack == stack and work.ends <= steps), default=0)
