"""What an index says of a run: names and texts that MLflow takes, distinct where the originals are, true to the files."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.track import describe
from orch.track.steps import Step, Value

ALLOWED = re.compile(r"[\w\-. :/]{1,250}")
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda t: st.dictionaries(st.text(max_size=300), t, max_size=3) | st.lists(t, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=300), TREES, max_size=4))
def test_every_recipe_becomes_params_that_mlflow_takes(recipe):
    params = describe.params(recipe)
    assert all(ALLOWED.fullmatch(key) for key in params)
    assert all(len(value) <= 6000 and "\x00" not in value for value in params.values())
    assert not any(piece in (".", "..", "") for key in params for piece in key.split("/"))


@pytest.mark.parametrize(
    ("recipe", "params"),
    [
        ({"train": {"lr": 1e-5, "on": True, "x": None}}, {"train.lr": "1e-05", "train.on": "true", "train.x": "null"}),
        ({"stacks": {"a+b": ["dear", "acp-sgd"]}}, {"stacks.a and b": '["dear", "acp-sgd"]'}),
        ({"empty": {}, "list": []}, {"empty": "{}", "list": "[]"}),
        ({"nan": math.nan}, {"nan": "NaN"}),
    ],
)
def test_params_read_like_the_recipe(recipe, params):
    assert describe.params(recipe) == params


def test_keys_that_meet_after_cleaning_stay_apart():
    params = describe.params({"a*b": 1, "a?b": 2, "a_b": 3, "x" * 300 + "1": 4, "x" * 300 + "2": 5})
    assert sorted(params.values()) == ["1", "2", "3", "4", "5"]
    assert params["a_b"] == "3"


def test_a_long_text_says_that_it_was_cut():
    text = describe.params({"a": "x" * 7000})["a"]
    assert len(text) == 6000
    assert text.endswith("... [7000 characters; whole in recipe.yaml]")


@pytest.mark.parametrize(("recipe", "name"), [("gpt2", "gpt2"), ("", "unnamed"), ("  ", "unnamed"), ("李/梅", "李/梅")])
def test_an_experiment_is_named_like_its_recipe(recipe, name):
    assert describe.experiment_name(recipe) == name


def test_long_names_are_cut_apart():
    one, two = (describe.experiment_name("n" * 600 + end) for end in "ab")
    assert one != two
    assert len(one) <= 500


def test_times_follow_the_stacks_own_clock_and_the_last_of_two_counts():
    points = describe.step_metrics(
        [Step(1, 0, 2.0, None, 0.5), Step(1, 0, 3.0, 0.1, 0.75), Step(2, 0, None, None, math.nan)],
        [Value(1, 0.75, "accuracy", 0.5)],
        created_s=1000.0,
    )
    assert [(p.key, p.value, p.time_ms, p.step) for p in points] == [
        ("loss", 3.0, 1000750, 1),
        ("step_time_s", 0.1, 1000750, 1),
        ("accuracy", 0.5, 1000750, 1),
    ]


def test_results_become_numbers_under_a_heading_of_their_own():
    results = {"step_time_s": {"median": 0.1}, "n": 3, "conformant": True, "note": "x", "list": [1], "gain/a+b": 1.5}
    points = {p.key: p.value for p in describe.result_metrics(results, 5)}
    assert points == {"result/step_time_s.median": 0.1, "result/n": 3.0, "gain/a and b": 1.5}


def test_parents_come_before_children_and_content_follows_the_files(make):
    made = make("r", ("a", "b"), seeds=(0, 1))
    run = made.to("running")
    first = describe.parts(run, run.state)
    assert [part.key for part in first] == ["run", "stack:a", "seed:0:a", "seed:1:a", "stack:b", "seed:0:b", "seed:1:b"]
    assert [part.parent for part in first[:3]] == ["", "run", "stack:a"]
    made.steps([Step(1, 0, 1.0, 0.1, 0.1)], "a", 1)
    second = describe.parts(run, run.state)
    assert [a.key for a, b in zip(first, second, strict=True) if a.content != b.content] == ["seed:1:a"]
    made.to("done", results={"stacks": {"b": {"x": 1}}})
    third = describe.parts(run, run.state)
    assert all(a.content != b.content for a, b in zip(second, third, strict=True))
    assert third[4].results == {"x": 1}


def test_what_is_not_finite_is_told(make):
    made = make("r", ("a",))
    made.steps([Step(1, 0, 1.0, 0.1, 0.1), Step(2, 0, -math.inf, 0.1, 0.2)], "a")
    made.values([Value(1, 0.1, "accuracy", math.nan)], "a")
    run = made.to("running", "done", results={"stacks": {"a": {"conformant": False, "note": "ok"}}})
    tags = describe.result_tags(describe.parts(run, run.state)[1])
    assert tags == {
        "orch.result.conformant": "false",
        "orch.result.note": "ok",
        "orch.not_finite": "2 values; first: accuracy is nan in step 1",
    }


def test_a_damaged_directory_still_has_its_run(make):
    run = make("r").to("running")
    (run.path / "run.json").write_text("{")
    assert [part.key for part in describe.parts(run, run.state)] == ["run"]
