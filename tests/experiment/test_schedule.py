"""The order of a seed's works is known before it begins, covers every step once, and can be entered anywhere."""

from __future__ import annotations

import pytest

from orch.experiment.schedule import schedule, whole_steps
from orch.experiment.statistics import block_orders


@pytest.mark.parametrize(
    "settings", [(), ("measure.warmup=0",), ("train.steps=17",), ("measure.blocks=1", "measure.steps=1")]
)
def test_every_stack_does_all_its_steps_in_order(tiny, settings) -> None:
    recipe = tiny(*settings)
    works = schedule(recipe, 1)
    for name in recipe.stacks:
        own = [work for work in works if work.stack == name]
        assert own[0].steps == own[0].ends == 0
        ends = 0
        for work in own:
            ends += work.steps
            assert work.ends == ends
        assert ends == recipe.training_steps(name)
        assert [work.block for work in own if work.block is not None] == list(range(recipe.measure.blocks))
        judgements = [work.judgements for work in own]
        assert judgements == sorted(judgements)
    blocks = [work.stack for work in works if work.block is not None]
    assert blocks == [name for order in block_orders(list(recipe.stacks), recipe.measure.blocks, 1) for name in order]


def test_a_block_cut_short_does_not_count(tiny) -> None:
    works = schedule(tiny(), 0)  # a warm-up of 1, then blocks of 3
    assert [whole_steps(works, "plain", steps) for steps in (0, 1, 3, 4, 6, 7, 99)] == [0, 1, 1, 4, 4, 7, 7]
