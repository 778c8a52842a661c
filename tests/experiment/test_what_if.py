"""The same recipe on other clusters."""

from __future__ import annotations

import pytest

from orch.experiment.predict import described, predict
from orch.experiment.what_if import bit_per_s, explore, faster, resized
from orch.recipe import load


@pytest.fixture(scope="module")
def recipe():
    return load("resnet50-v100")


def test_whole_nodes_or_a_part_of_one(recipe) -> None:
    cluster = recipe.cluster
    sizes = {count: resized(cluster, count) for count in (2, 4, 8, 10, 64)}
    assert {count: None if c is None else (c.nodes, c.devices_per_node) for count, c in sizes.items()} == {
        2: (1, 2), 4: (1, 4), 8: (2, 4), 10: None, 64: (16, 4),
    }  # fmt: skip
    alone = resized(load("quickstart").cluster, 7)
    assert alone is not None and (alone.nodes, alone.devices_per_node) == (1, 7)


def test_a_faster_link_moves_bytes_faster_and_starts_as_slowly(recipe) -> None:
    cluster, fast = recipe.cluster, faster(recipe.cluster, 10.0)
    assert bit_per_s(fast) == pytest.approx(10 * bit_per_s(cluster))
    before, after = (one.curve("all-reduce", one.world) for one in (cluster, fast))
    assert after.start_up_s == before.start_up_s
    assert after.per_byte_s == pytest.approx(before.per_byte_s / 10)
    assert faster(cluster, 1.0) is cluster


def test_a_cell_is_what_plan_would_say_of_that_cluster(recipe) -> None:
    cells = {
        (c.workers, c.factor, c.stack): c.step_time_s for c in explore(recipe, described(recipe), [8, 16], [1.0, 2.0])
    }
    assert len(cells) == 2 * 2 * len(recipe.stacks)
    there = predict(load("resnet50-v100", ["cluster.nodes=2"]))
    for name, stack in there.stacks.items():
        assert cells[8, 1.0, name] == pytest.approx(stack.step_time_s.median)
    assert all(cells[16, 2.0, name] <= cells[16, 1.0, name] for name in recipe.stacks)


def test_experts_that_were_shared_out_stay_where_they_are() -> None:
    mixture = load("gpt2-moe-2080ti")
    cells = explore(mixture, described(mixture), [16, mixture.cluster.world_size], [1.0])
    assert {cell.workers for cell in cells} == {mixture.cluster.world_size}


def test_sizes_that_fill_no_nodes_are_left_out(recipe) -> None:
    assert explore(recipe, described(recipe), [6], [1.0], ["ddp"]) == []
