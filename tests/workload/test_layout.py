"""Where experts live: blocks, slices and replicas for shapes that divide, and a sentence for those that do not."""

import pytest

from orch.errors import OrchError
from orch.models.profile import Mixture
from orch.workload import Layout


@pytest.mark.parametrize(
    ("world", "experts", "slices"), [(1, 1, 1), (4, 4, 1), (8, 2, 2), (8, 2, 1), (12, 3, 2), (8, 1, 4)]
)
def test_every_rank_is_once_in_every_group(world, experts, slices):
    groups = Layout(world, experts, slices).groups()
    sizes = {"experts": experts, "slices": slices, "replicas": world // (experts * slices)}
    sizes["block"] = experts * slices if slices > 1 else 1  # all slices of all experts
    assert set(groups) == {"world"} | {name for name, size in sizes.items() if size > 1}
    for name, group in groups.items():
        assert sorted(rank for block in group.blocks for rank in block) == list(range(world))
        assert {len(block) for block in group.blocks} == {world if name == "world" else sizes[name]}


def test_slices_are_neighbours_and_experts_lie_across():
    groups = Layout(8, 2, 2).groups()
    assert [list(block) for block in groups["slices"].blocks] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [list(block) for block in groups["experts"].blocks] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert [list(block) for block in groups["replicas"].blocks] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert [list(block) for block in groups["block"].blocks] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def mixture(experts=6, inner=8):
    return Mixture("moe", 4, 4, inner, experts, 2)


def test_as_many_ranks_as_divide_both_share_the_experts():
    assert Layout.of(4, [mixture(6)]).experts == 2
    assert Layout.of(4, [mixture(8), mixture(6)]).experts == 2
    assert Layout.of(8, [mixture(8)], None, 2).experts == 4
    assert Layout.of(4, []).replicas == 1


def test_what_does_not_fit_is_said():
    with pytest.raises(OrchError, match="experts spread over 3 x 1 ranks do not fill 4 ranks"):
        Layout.of(4, [mixture(6)], 3)
    with pytest.raises(OrchError, match="6 experts of moe cannot be shared out among 4 workers"):
        Layout.of(4, [mixture(6)], 4)
    with pytest.raises(OrchError, match="experts of moe, 9 wide, cannot be cut into 2 slices"):
        Layout.of(4, [mixture(6, inner=9)], 2, 2)
