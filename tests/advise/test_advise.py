"""Which stack is worth trying: nothing inside the error is sold, and everything costs what it costs."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from orch.advise.advise import FLOOR, Advised, Gain, advise, past_errors
from orch.experiment.predict import predict
from orch.recipe import load
from orch.track.directory import Facts
from orch.track.tracker import Tracker


@pytest.fixture(scope="module")
def resnet():
    recipe = load("resnet50-v100")
    start = time.process_time()
    found = advise(recipe)
    assert time.process_time() - start < 5.0  # the whole of it takes seconds
    return found


def by_name(advice) -> dict[str, Advised]:
    return {one.name: one for one in advice.ranked}


def test_gains_are_those_that_plan_predicts(resnet) -> None:
    forecast = predict(load("resnet50-v100"))
    found = by_name(resnet)
    for name in ("wfbp", "mg-wfbp", "dear", "acp-sgd"):
        assert found[name].gain.median == pytest.approx(forecast.speedup(name))
        assert found[name].step_time_s == pytest.approx(forecast.stacks[name].step_time_s.median)
        assert found[name].exposed_s == pytest.approx(forecast.stacks[name].exposed_communication_s)
    assert resnet.ceiling_speedup == pytest.approx(forecast.ceiling_speedup)
    gains = [one.gain.median for one in resnet.ranked]
    assert gains == sorted(gains, reverse=True)
    assert resnet.tried > 20


@pytest.mark.parametrize(
    "cluster",
    [
        "cluster.sharing={compute_slowdown: 1.2, communication_slowdown: 1.1, lanes: 2, source: a test}",
        "cluster.jitter=0.1",
    ],
)
def test_clusters_whose_variants_are_simulated_one_by_one(cluster: str) -> None:
    recipe = load("quickstart", [cluster])
    forecast = predict(recipe)
    found = by_name(advise(recipe))
    assert found["wfbp"].gain.median == pytest.approx(forecast.speedup("wfbp"))
    assert found["wfbp"].gain.lo < found["wfbp"].gain.median


def test_a_gain_inside_the_error_is_not_sold(resnet) -> None:
    found = by_name(resnet)
    assert found["mg-wfbp"].gain.median > 1.0  # and yet
    assert found["mg-wfbp"].verdict == "inside the error"
    assert found["wfbp"].verdict == "slower"
    assert all(one.gain.lo > 1.0 for one in resnet.ranked if one.verdict == "faster")
    for one in resnet.ranked:
        assert one.gain.lo <= one.gain.median / (1 + FLOOR) + 1e-12
        assert 0 < one.gain.less < 1 and one.gain.more > 0


def test_a_lossy_winner_is_best_only_where_no_exact_stack_gains(resnet) -> None:
    assert resnet.best is not None and not resnet.best.lossless
    exact = replace(by_name(resnet)["mg-wfbp"], gain=Gain(1.1, 1.05, 1.2))
    assert replace(resnet, ranked=(*resnet.ranked, exact)).best is exact


def test_costs_stand_beside_gains(resnet) -> None:
    found = by_name(resnet)
    assert found["acp-sgd"].extra_memory_bytes > 2**20
    assert found["mg-wfbp"].extra_memory_bytes == pytest.approx(0, abs=2**16)
    assert not found["acp-sgd"].lossless
    assert all(one.fits for one in resnet.ranked)
    small = advise(load("quickstart", ["cluster.device.memory=1MiB"]))
    assert {one.verdict for one in small.ranked} == {"does not fit into memory"}
    assert small.best is None


def test_of_one_stack_only_its_best_knobs_are_shown(resnet) -> None:
    techniques = [one.candidate.stack.techniques for one in resnet.ranked if not one.candidate.own]
    assert len(techniques) == len(set(techniques))


def test_other_links_and_sizes_are_asked_for(resnet) -> None:
    first = resnet.elsewhere[0]
    assert list(first.gains) == ["link 10x faster", "8 workers", "64 workers", "512 workers"]
    there = predict(load("resnet50-v100", ["cluster.nodes=2"]))
    dear = next((one for one in resnet.elsewhere if one.stack == "acp-sgd"), None)
    if dear is not None:
        assert dear.gains["8 workers"] == pytest.approx(there.speedup("acp-sgd"))
    fast = first.gains["link 10x faster"]
    assert fast is not None and fast < by_name(resnet)[first.stack].gain.median


def kept(root: Path, mode: str, measured: float) -> None:
    recipe = load("resnet50-v100")
    stacks = {
        "ddp": {"predicted_step_time_s": 0.2, "step_time_s": {"median": 0.2}},
        "dear": {"predicted_step_time_s": 0.1, "step_time_s": {"median": 0.2 / measured}},
    }
    with Tracker(root, index=False).run(
        Facts(recipe.name, mode, ("ddp", "dear"), baseline="ddp"), recipe.resolved()
    ) as run:
        run.finish({"mode": mode, "stacks": stacks})


def test_predictions_that_were_wrong_before_widen_the_error(resnet, tmp_path: Path) -> None:
    recipe = load("resnet50-v100")
    kept(tmp_path, "simulated", 1.0)
    assert past_errors(tmp_path, recipe) == []
    kept(tmp_path, "measured", 1.6)  # foretold 2.0
    assert past_errors(tmp_path, recipe) == pytest.approx([0.25])
    assert past_errors(tmp_path, load("gpt2-a100")) == []
    found = advise(recipe, tmp_path)
    assert (found.past_error, found.past_runs) == (pytest.approx(0.25), 1)
    before, after = (by_name(one)["acp-sgd"] for one in (resnet, found))
    assert before.verdict == "faster" and after.verdict == "inside the error"
    assert after.gain.lo == pytest.approx(before.gain.lo * (1 + FLOOR) / 1.25)
