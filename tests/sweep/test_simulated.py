"""A simulated trial says what the forecast of its recipe says."""

from __future__ import annotations

import pytest

from orch.experiment.predict import predict
from orch.recipe.sweep import LEARNED, METRICS
from orch.sweep.metrics import InfeasibleError
from orch.sweep.settings import Settings
from orch.sweep.simulated import Simulator

KNOWN = [name for name in METRICS if name not in LEARNED]


@pytest.mark.parametrize("stack", ["buckets", "merged", "small"])
def test_metrics_are_those_of_the_forecast(recipe, stack: str) -> None:
    trial = Settings(recipe()).trial({"stack": stack})
    found = Simulator(KNOWN).values(trial)
    forecast = predict(recipe()).stacks[stack]
    assert list(found) == KNOWN
    assert found["step_time"] == forecast.step_time_s.median
    assert found["exposed_time"] == pytest.approx(forecast.exposed_communication_s)
    assert found["speedup"] == pytest.approx(predict(recipe()).speedup(stack))
    assert found["throughput"] == pytest.approx(2 * 8 / forecast.step_time_s.median)
    footprint = (forecast.footprint.payload, forecast.footprint.wire, forecast.footprint.peak_memory)
    assert (found["payload"], found["wire"], found["memory"]) == footprint


def test_a_speedup_is_over_the_baseline_with_the_same_settings(recipe) -> None:
    varied = ["sweep.over={stack: [merged], cluster.devices_per_node: [2, 3]}"]
    settings, simulator = Settings(recipe(*varied), varied), Simulator(["speedup"])
    for workers in (2, 3):
        trial = settings.trial({"stack": "merged", "cluster.devices_per_node": workers})
        expected = predict(recipe(f"cluster.devices_per_node={workers}")).speedup("merged")
        assert simulator.values(trial)["speedup"] == pytest.approx(expected)


def test_what_does_not_fit_the_device_is_infeasible(recipe) -> None:
    trial = Settings(recipe("cluster.device.memory=64KiB")).trial({"stack": "merged"})
    with pytest.raises(InfeasibleError, match=r"^out of memory: .* of 0.0 GiB \(predicted\)$"):
        Simulator(["step_time"]).values(trial)
