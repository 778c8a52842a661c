"""Where values come from; `test_check` asks it of whole recipes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orch.errors import OrchError
from orch.recipe import Recipe, load

Changed = Callable[..., Recipe]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("train.stesp", "train.stesp: there is no key 'stesp' in train; did you mean steps? [E210]"),
        ("trian", "trian: there is no key 'trian'; did you mean train? [E210]"),
        ("train.steps.x", "train.steps.x: there is no key 'x' in train.steps; it is a value without keys [E210]"),
        ("", ": there is no key ''; there are: "),
        ("seeds.7", "seeds.7: there is no key '7' in seeds; there are: 0 [E210]"),
    ],
)
def test_a_path_that_leads_nowhere(changed: Changed, path: str, message: str) -> None:
    with pytest.raises(OrchError) as caught:
        changed().origin(path)
    assert str(caught.value).startswith(message)


def test_a_key_with_dots_needs_no_quotes(changed: Changed) -> None:
    recipe = changed('stacks."v1.5"=[together]')
    assert recipe.origin("stacks.v1.5.together.size").value == "25MiB"
    assert recipe.origin('stacks."v1.5".together.size').value == "25MiB"


def test_the_whole_history_of_a_value(lab: Path, changed: Changed) -> None:
    changed()
    (lab / "child.yaml").write_text("extends: r.yaml\ntrain: {steps: 20}\n")
    origin = load("child.yaml", ["train.steps=30"]).origin("train.steps")
    assert str(origin) == (
        "train.steps = 30  (override 1: train.steps=30)\n"
        "  instead of 20  (child.yaml:2:16)\n"
        "  instead of 400  (r.yaml:7:10)"
    )


def test_an_override_of_a_cluster_file_tells_the_file(changed: Changed) -> None:
    assert str(changed("cluster.nodes=2").origin("cluster.nodes")) == (
        "cluster.nodes = 2  (override 1: cluster.nodes=2)\n  instead of 4  (clusters/tiny.yaml:1:8)"
    )


def test_every_resolved_value_has_an_origin(changed: Changed) -> None:
    recipe = changed("train.steps=3", "techniques.together.planner=exact")
    seen = 0

    def walk(value: object, path: str) -> None:
        nonlocal seen
        for key, below in value.items() if isinstance(value, dict) else ():
            here = f"{path}.{key}" if path else key
            origin = recipe.origin(here)
            assert origin.value == below
            assert str(origin.where).startswith(("r.yaml:", "clusters/tiny.yaml:", "override ", "default")), origin
            seen += 1
            walk(below, here)

    walk(recipe.resolved(), "")
    assert seen > 40
