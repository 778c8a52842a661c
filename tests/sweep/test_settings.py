"""From what was chosen to a recipe, and to the key of its cell."""

from __future__ import annotations

import pytest

from orch.errors import OrchError
from orch.recipe import load
from orch.sweep.settings import Settings, cell_key, reduced

SMALL = {"stack": "small", "techniques.mg-wfbp.planner": "greedy", "techniques.acp-sgd.rank": 8}


def test_knobs_reach_the_stack_and_no_other(recipe) -> None:
    trial = Settings(recipe()).trial(SMALL)
    configs = {member.name: member.config for member in trial.recipe.stacks["small"].members}
    assert (configs["acp-sgd"].rank, configs["mg-wfbp"].planner) == (8, "greedy")
    assert trial.recipe.stacks["merged"].members[0].config.planner == "exact"


def test_a_knob_of_the_sweep_goes_before_the_stacks_own(recipe) -> None:
    base = recipe("stacks.small={mg-wfbp: {planner: exact}, acp-sgd: {rank: 2}}")
    configs = {member.name: member.config for member in Settings(base).trial(SMALL).recipe.stacks["small"].members}
    assert (configs["acp-sgd"].rank, configs["mg-wfbp"].planner) == (8, "greedy")


def test_other_settings_are_composed_once(recipe, monkeypatch) -> None:
    varied = ["sweep.over={stack: auto, train.batch_per_worker: [8, 16], cluster.nodes: [1, 2]}"]
    settings = Settings(recipe(*varied), varied)
    chosen = {"stack": "ddp", "train.batch_per_worker": 16, "cluster.nodes": 2}
    found = settings.trial(chosen)
    assert (found.recipe.batch_per_worker("ddp"), found.recipe.cluster.world_size) == (16, 4)
    assert settings.trial(chosen).recipe is found.recipe


def test_equal_cells_have_equal_keys_and_others_do_not(recipe) -> None:
    settings = Settings(recipe())
    around = {"code": {"acp-sgd": "1"}}

    def key(chosen: dict, mode: str = "simulated", around: dict = around) -> str:
        trial = settings.trial(chosen)
        return cell_key(trial.recipe, trial.stack, mode, around)

    same = key(SMALL)
    assert key(dict(SMALL)) == same
    assert key({**SMALL, "techniques.acp-sgd.rank": 4}) != same
    assert key(SMALL, mode="measured") != same
    assert key(SMALL, around={"code": {"acp-sgd": "2"}}) != same
    assert key({"stack": "merged", "techniques.mg-wfbp.planner": "exact"}) == key({"stack": "merged"})
    other = Settings(recipe("cluster.devices_per_node=4")).trial(SMALL)
    assert cell_key(other.recipe, other.stack, "simulated", around) != same


def test_how_it_is_measured_is_part_of_a_measured_cell_only(recipe) -> None:
    one, other = (Settings(base).trial(SMALL) for base in (recipe(), recipe("measure.blocks=5")))
    for mode, same in (("simulated", True), ("measured", False)):
        keys = {cell_key(trial.recipe, trial.stack, mode, {}) for trial in (one, other)}
        assert (len(keys) == 1) is same


def test_an_override_of_what_is_varied_is_refused(recipe) -> None:
    overrides = ["train.steps=40", "techniques.acp-sgd.rank=3"]
    with pytest.raises(
        OrchError, match=r"^override 2: .*: the sweep varies techniques.acp-sgd.rank; drop it.*\[E631\]$"
    ):
        Settings(recipe(*overrides), overrides)


def test_an_impossible_value_is_found_before_any_trial(recipe, search) -> None:
    base = recipe("sweep.over={stack: [small], techniques.acp-sgd.rank: [0, 1], train.batch_per_worker: [8]}")
    with pytest.raises(OrchError, match=r"techniques.acp-sgd.rank=0: .*rank must be at least 1") as caught:
        Settings(base).refuse_impossible()
    assert caught.value.where is not None
    Settings(recipe()).refuse_impossible()


def test_a_trials_recipe_stands_on_its_own(recipe, tmp_path) -> None:
    import yaml

    trial = Settings(recipe()).trial(SMALL)
    alone = reduced(trial.recipe, {"small": trial.recipe.stacks["small"]}, "small")
    path = tmp_path / "trial.yaml"
    path.write_text(yaml.safe_dump(alone.resolved(), sort_keys=False))
    again = load(path)
    assert list(again.stacks) == ["small"]
    assert [m.config for m in again.stacks["small"].members] == [m.config for m in trial.recipe.stacks["small"].members]
    assert again.sweep is None
