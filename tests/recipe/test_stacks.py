"""Stacks of a recipe: members with the knobs that reach them; `test_check` has what cannot be."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orch.recipe import Recipe

Changed = Callable[..., Recipe]


@pytest.mark.parametrize(
    ("overrides", "rank"),
    [
        ([], 4),
        (["stacks.both.squeeze.rank=8"], 8),
        (["techniques.squeeze.rank=16"], 16),
        (["techniques.squeeze=null"], 2),
        (["stacks.both={together: , squeeze: {share: 0.1}}"], 4),
    ],
)
def test_a_stacks_own_knobs_go_before_those_of_all_stacks(changed: Changed, overrides: list[str], rank: int) -> None:
    members = {member.name: member for member in changed(*overrides).stacks["both"].members}
    assert members["squeeze"].config.rank == rank  # type: ignore[attr-defined]


def test_knobs_reach_a_technique_that_only_fills_a_slot(changed: Changed) -> None:
    recipe = changed("stacks={one: [squeeze]}", "baseline=one", "techniques.together.size=1MiB")
    filled = recipe.stacks["one"].members[1]
    assert (filled.name, filled.given, filled.config.size) == ("together", False, 2**20)  # type: ignore[attr-defined]


def test_what_a_stack_is(changed: Changed) -> None:
    stacks = changed().stacks
    assert [(stack.techniques, stack.lossless, stack.engine) for stack in stacks.values()] == [
        (("each",), True, None),
        (("together",), True, None),
        (("squeeze", "together"), False, None),
    ]


def test_order_in_the_file_means_nothing(changed: Changed) -> None:
    one, other = (
        changed(f"stacks.both={order}").stacks["both"] for order in ("[squeeze, together]", "[together, squeeze]")
    )
    assert one == other
