"""What there is to choose from."""

from __future__ import annotations

import pytest

from orch.advise.space import combined, neighbours, own, singles, travelling
from orch.recipe import load


@pytest.fixture(scope="module")
def recipe():
    return load("resnet50-v100", ["techniques.acp-sgd.rank=8"])


def test_the_recipes_own_stacks_come_as_they_are(recipe) -> None:
    found = list(own(recipe))
    assert [one.name for one in found] == list(recipe.stacks)
    assert found[-1].written == {"acp-sgd": {"rank": 8}}
    assert all(one.own for one in found)


def test_every_technique_that_decides_a_step_is_tried_alone(recipe) -> None:
    names = {one.name for one in singles(recipe)}
    assert {"dear", "mg-wfbp", "bucketed", "acp-sgd", "top-k", "torch-ddp"} <= names
    # Feedback and exchange follow from the compressor; schedules of experts need experts.
    assert names.isdisjoint({"error-feedback", "all-gather", "pipemoe", "naive-moe"})
    assert {"pipemoe", "schemoe", "bf16-rows", "two-level-a2a"} <= {
        one.name for one in singles(load("gpt2-moe-2080ti"))
    }


def test_forms_and_ways_of_rows_are_added_to_stacks_and_not_combined_with_all() -> None:
    mixed = load("gpt2-moe-2080ti")
    names = ["pipemoe", "dear", "bf16-rows", "two-level-a2a", "pipe-a2a"]
    assert {one.name for one in combined(mixed, names)} == {"dear+pipemoe"}
    (both,) = combined(mixed, ["pipemoe", "dear"])
    found = {one.name for one in travelling(mixed, both, names)}
    assert len(found) == 5
    assert {"dear+bf16-rows+pipemoe", "dear+bf16-rows+two-level-a2a+pipemoe"} <= found
    (packed,) = travelling(mixed, both, ["bf16-rows"])
    assert {one.name for one in travelling(mixed, packed, names)} == {
        "dear+bf16-rows+two-level-a2a+pipemoe",
        "dear+bf16-rows+pipe-a2a+pipemoe",
    }


def test_pairs_are_those_that_contracts_allow(recipe) -> None:
    found = {one.name: one for one in combined(recipe, ["dear", "mg-wfbp", "acp-sgd", "torch-ddp"])}
    assert set(found) == {"acp-sgd+dear", "acp-sgd+mg-wfbp"}  # never two schedules; torch's engine takes no compressor
    assert found["acp-sgd+dear"].written == {"acp-sgd": {"rank": 8}, "dear": {}}
    assert "error-feedback" in found["acp-sgd+dear"].stack.techniques


def test_knobs_move_by_what_they_are(recipe) -> None:
    (dear,) = (one for one in singles(recipe) if one.name == "dear")
    assert [one.name for one in neighbours(recipe, dear)] == ["dear bucket=6.25MiB", "dear bucket=100MiB"]
    assert next(neighbours(recipe, dear)).written == {"dear": {"bucket": "6553600.0B"}}
    assert all(one.tuned for one in neighbours(recipe, dear))
    (merged,) = (one for one in singles(recipe) if one.name == "mg-wfbp")
    assert "mg-wfbp planner=greedy" in [one.name for one in neighbours(recipe, merged)]
    low_rank = next(one for one in own(recipe) if one.name == "acp-sgd")
    found = {one.name: one.written for one in neighbours(recipe, low_rank)}
    assert found["acp-sgd rank=2"] == {"acp-sgd": {"rank": 2}}
    assert "acp-sgd rank=32" in found
