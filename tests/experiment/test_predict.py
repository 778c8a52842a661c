"""Predictions of a recipe's stacks: ceiling, bands, bytes, scales."""

from __future__ import annotations

import pytest

from orch.errors import OrchError
from orch.experiment.predict import described, plan_stack, predict, predict_scales
from orch.recipe import load


@pytest.fixture(scope="module")
def forecast():
    return predict(load("resnet50-v100"))


def test_nothing_exact_beats_the_ceiling(forecast) -> None:
    assert forecast.ceiling_speedup > 1.0
    for stack in forecast.stacks.values():
        assert stack.step_time_s.median >= stack.ceiling_s * (1 - 1e-9)
        assert stack.exposed_communication_s == pytest.approx(stack.step_time_s.median - stack.ceiling_s)
        if stack.lossless:
            assert stack.step_time_s.median >= forecast.ceiling_s * (1 - 1e-9)


def test_a_band_holds_its_median(forecast) -> None:
    for stack in forecast.stacks.values():
        band = stack.step_time_s
        assert band.lo <= band.median <= band.hi
        assert band.lo < band.hi
        assert band.basis


def test_bytes_are_those_of_the_plan(forecast) -> None:
    ddp = forecast.stacks["ddp"]
    assert ddp.footprint.payload == 4 * 25_557_032
    assert ddp.footprint.wire == pytest.approx(2 * 15 / 16 * 4 * 25_557_032)
    assert sum(bucket.nbytes for bucket in ddp.buckets) == ddp.footprint.payload
    assert {bucket.collective for bucket in ddp.buckets} == {"all_reduce"}
    assert {bucket.collective for bucket in forecast.stacks["dear"].buckets} == {"reduce_scatter", "all_gather"}
    assert forecast.stacks["acp-sgd"].footprint.payload < 0.02 * ddp.footprint.payload


def test_gains_are_over_the_baseline(forecast) -> None:
    assert forecast.speedup("ddp") == 1.0
    times = {name: stack.step_time_s.median for name, stack in forecast.stacks.items()}
    assert forecast.speedup("wfbp") == times["ddp"] / times["wfbp"]


def test_bytes_of_an_alternating_plan_are_means_over_its_period(forecast) -> None:
    stack = forecast.stacks["acp-sgd"]
    assert stack.plan.period == 2
    assert stack.footprint.payload == pytest.approx(sum(bucket.nbytes for bucket in stack.buckets) / 2)


def test_each_pass_tells_what_it_did() -> None:
    recipe = load("resnet50-v100")
    _, passes = plan_stack(recipe, "mg-wfbp", described(recipe))
    assert [report.technique for report in passes] == ["mg-wfbp"]
    assert passes[0].changed
    assert passes[0].step_time_s[1] < passes[0].step_time_s[0]


def test_scales_are_the_recipe_with_other_nodes() -> None:
    found = predict_scales("resnet50-v100", [], "16,64")
    assert list(found) == [16, 64]
    assert found[64].cluster.nodes == 16
    assert found[64].ceiling_speedup > found[16].ceiling_speedup


@pytest.mark.parametrize(("scale", "found"), [("6", "6"), ("16,x", "x"), ("0", "0"), ("", ""), ("16,-4", "-4")])
def test_a_size_that_fills_no_nodes_is_refused(scale: str, found: str) -> None:
    with pytest.raises(OrchError, match=rf"--scale {scale}: '{found}' is no number of workers .* \[E603\]"):
        predict_scales("resnet50-v100", [], scale)


def test_a_link_nobody_described_is_refused() -> None:
    with pytest.raises(OrchError, match=r"links.inter is not described.*\[E301\]"):
        predict(load("quickstart", ["cluster.nodes=512"]))


@pytest.mark.parametrize("given", ["{step: 300ms, forward: 25%}", "{throughput: 106.66666666666667, forward: 25%}"])
def test_a_measured_step_takes_the_place_of_the_rates(given: str) -> None:
    recipe = load("resnet50-v100", [f"compute={given}", "train.batch_per_worker=32"])
    forecast = predict(recipe)
    assert forecast.ceiling_s == pytest.approx(0.3)
    profile = described(recipe).profiles["wfbp"]
    assert sum(module.forward_s or 0.0 for module in profile.modules) == pytest.approx(0.075)


def test_what_a_technique_refuses_stands_where_its_stack_was_written(tmp_path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text("extends: gpt2-moe-2080ti\nstacks:\n  odd:\n    - fastermoe: {loads: [1, 2]}\n", encoding="utf-8")
    with pytest.raises(OrchError, match="technique fastermoe: loads of 2 experts") as refused:
        predict(load(path))
    assert str(refused.value).startswith(f"{path}:3:3: ")
