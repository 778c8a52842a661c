"""The pair that is measured once more: best and baseline, fresh seeds, enough blocks."""

from __future__ import annotations

import pytest

from orch.recipe import load
from orch.sweep.confirm import pair, simulated
from orch.sweep.metrics import Sought
from orch.sweep.settings import Settings
from orch.sweep.simulated import Simulator


def test_best_and_baseline_stand_beside_each_other(recipe, tmp_path) -> None:
    import yaml

    found = pair(Settings(recipe()), {"stack": "small", "techniques.acp-sgd.rank": 8})
    assert found is not None
    assert list(found.stacks) == ["ddp", "small"]
    assert found.stacks["small"].members[0].config.rank == 8
    assert found.measure.blocks == 6
    assert set(found.seeds) & set(recipe().seeds) == set()
    (tmp_path / "pair.yaml").write_text(yaml.safe_dump(found.resolved(), sort_keys=False))
    assert list(load(tmp_path / "pair.yaml").stacks) == ["ddp", "small"]


def test_a_training_of_its_own_length_keeps_its_blocks(recipe) -> None:
    found = pair(Settings(recipe("train.steps=50")), {"stack": "merged"})
    assert found is not None
    assert found.measure.blocks == 2


def test_a_varied_baseline_meets_the_recipes_own(recipe) -> None:
    varied = ["sweep.over={stack: [ddp], train.optimizer.sgd.lr: [0.05, 0.2]}"]
    settings = Settings(recipe(*varied), varied)
    found = pair(settings, {"stack": "ddp", "train.optimizer.sgd.lr": 0.2})
    assert found is not None
    assert list(found.stacks) == ["ddp", "best"]
    rates = [stack.train.optimizer.settings["lr"] for stack in found.stacks.values()]
    assert rates == [0.05, 0.2]
    assert pair(settings, {"stack": "ddp", "train.optimizer.sgd.lr": 0.05}) is None


def test_predictions_of_both(recipe) -> None:
    base = recipe()
    assert base.sweep is not None
    found = simulated(Settings(base), Simulator(["step_time"]), {"stack": "merged"}, Sought.of(base.sweep))
    assert found["over"] == "ddp"
    ratio = found["baseline"]["step_time_s"] / found["values"]["step_time_s"]
    assert found["gain"]["median"] == pytest.approx(ratio)
    assert found["mode"] == "simulated"


def test_a_ratio_of_steps_of_other_samples_says_so(recipe) -> None:
    varied = ["sweep.over={stack: [merged], train.batch_per_worker: [1, 2, 32]}"]
    base = recipe(*varied)
    assert base.sweep is not None
    batch = base.batch_per_worker("ddp")
    found = [
        simulated(Settings(base, varied), Simulator(["step_time"]), {"stack": "merged", "train.batch_per_worker": asked},
                  Sought.of(base.sweep))["gain"]["text"]
        for asked in (batch, batch + 1)
    ]  # fmt: skip
    assert "samples" not in found[0]
    assert f"; of steps of {batch + 1} samples a worker over steps of {batch}: ask for throughput" in found[1]
