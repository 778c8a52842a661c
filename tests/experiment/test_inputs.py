"""What predictions computed with is kept whole."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orch.cluster import Curve, Overhead, Sharing
from orch.experiment import inputs
from orch.experiment.predict import described, predict
from orch.recipe import load
from orch.track import encoding


@pytest.mark.parametrize("name", ["quickstart", "resnet50-v100", "gpt2-moe-2080ti"])
def test_kept_inputs_predict_the_same(name: str, tmp_path: Path) -> None:
    recipe = load(name)
    first = described(recipe)
    shared = first.cluster
    if name == "quickstart":  # as a run measures its cluster
        work = {"acp-sgd encode": Curve(1e-4, 2.0, ((1e-3, 0.5),))}
        sharing, overhead = Sharing(1.5, 2.0, "made up", 2, 1e-3), Overhead(1e-3, 1e-5, "made up")
        shared = replace(shared, sharing=sharing, overhead=overhead, operations=work, speed={1: 0.5})
    first = replace(first, cluster=shared, update_s=dict.fromkeys(recipe.stacks, 1e-3))
    encoding.write_json(tmp_path / inputs.FILE, inputs.to_json(first))
    again = inputs.from_json(encoding.read_json(tmp_path / inputs.FILE), recipe.cluster)
    assert again.cluster.links == first.cluster.links
    assert again == first
    found, expected = (predict(recipe, one) for one in (again, first))
    assert {name: stack.step_time_s for name, stack in found.stacks.items()} == {
        name: stack.step_time_s for name, stack in expected.stacks.items()
    }


def test_equal_profiles_are_written_once() -> None:
    data = inputs.to_json(described(load("resnet50-v100")))
    assert len(data["profiles"]) == 1
    assert {one["profile"] for one in data["stacks"].values()} == {0}
    assert json.dumps(data)


def test_a_run_keeps_them(finished) -> None:
    kept = encoding.read_json(finished.path / inputs.FILE)
    again = inputs.from_json(kept, finished.outcome.recipe.cluster)
    assert again.cluster.links == finished.outcome.forecast.cluster.links
    assert again.profiles["plain"].measured
