"""The JSON schema of recipes: what ships is valid under it, and what an editor should underline is not."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from orch.commands._schema import recipe_schema
from orch.recipe.source import read_file

ROOT = Path(__file__).resolve().parents[2]
RECIPE = {
    "orch": 1,
    "model": {"use": "resnet-digits", "width": 8},
    "data": "digits8",
    "train": {"batch_per_worker": 8, "optimizer": {"sgd": {"lr": 0.1}}},
    "cluster": {"use": "local-4", "nodes": 2, "links": {"inter": {"alpha": "50us", "beta": "0.8ns/B"}}},
    "techniques": {"bucketed": {}},
    "stacks": {"plain": ["wfbp"], "merged": {"mg-wfbp": {"planner": "greedy"}}, "none": {"wfbp": None}},
}


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = recipe_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def faults(validator: jsonschema.Draft202012Validator, recipe: object) -> list[str]:
    return [f"{list(error.path)}: {error.message}" for error in validator.iter_errors(recipe)]


def test_every_form_a_user_may_write_is_valid(validator) -> None:
    assert faults(validator, RECIPE) == []
    assert faults(validator, {**RECIPE, "model": "gpt2", "cluster": "somewhere-of-mine"}) == []
    assert faults(validator, {"orch": 1, "extends": "base.yaml"}) == []
    assert faults(validator, {**RECIPE, "train": {**RECIPE["train"], "optimizer": "sgd"}}) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["trane"], {}),
        (["train", "stepz"], 3),
        (["train", "batch_per_worker"], "many"),
        (["stacks", "plain"], ["no-such-technique"]),
        (["stacks", "plain"], ["wfbp", "wfbp"]),
        (["stacks", "merged"], {"mg-wfbp": {"planner": "perfect"}}),
        (["stacks"], {}),
        (["model"], {"use": "resnet-digits", "width": "wide"}),
        (["cluster", "nodez"], 3),
        (["techniques"], {"mg-wfbp": {"plan": "greedy"}}),
    ],
)
def test_what_orch_refuses_an_editor_underlines(validator, path: list[str], value: object) -> None:
    recipe = copy.deepcopy(RECIPE)
    inner = recipe
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    assert faults(validator, recipe) != []


@pytest.mark.parametrize(
    ("search", "right"),
    [
        ({"over": {"seeds": [[0], [1]], "techniques.dear": "auto"}, "minimize": "loss", "sampler": "TPESampler"}, True),
        ({"over": {"x": {"low": 1, "high": 4, "when": {"stack": "dear"}}}, "maximize": ["speedup", "memory"]}, True),
        ({"over": {"x": [1, 2]}, "minimize": "los"}, False),
        ({"over": {"x": "outo"}, "minimize": "loss"}, False),
        ({"over": {"x": {"lo": 1, "high": 4}}, "minimize": "loss"}, False),
        ({"over": {"x": [1]}, "minimize": "loss", "pruner": "MedianPrunner"}, False),
    ],
)
def test_a_search_in_its_short_forms(validator, search: dict[str, Any], right: bool) -> None:
    assert (faults(validator, {**copy.deepcopy(RECIPE), "sweep": search}) == []) == right


def test_without_a_parent_the_recipe_must_be_whole(validator) -> None:
    assert any("'model' is a required property" in fault for fault in faults(validator, {"orch": 1}))


def test_its_descriptions_are_the_schemas(validator) -> None:
    properties = validator.schema["properties"]
    assert properties["stacks"]["description"].startswith("what is compared")
    assert all(section.get("description") for name, section in properties.items() if name != "orch")


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.yaml")), ids=lambda path: path.stem)
def test_what_ships_is_valid(validator, path: Path) -> None:
    assert faults(validator, read_file(path).plain()) == []
