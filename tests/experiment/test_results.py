"""Results: figures by hand, and the keys that programs rely on."""

from __future__ import annotations

import math

import pytest

from orch.experiment.outcome import Outcome, Trained
from orch.experiment.predict import predict
from orch.experiment.results import document, median_prediction_error, results, simulated_document

KEYS = {
    "step_time_s", "predicted_step_time_s", "prediction_error", "speedup", "loss", "accuracy", "payload_bytes_per_worker",
    "wire_bytes_per_worker", "conformant", "peak_memory_bytes", "predicted_peak_memory_bytes",
}  # fmt: skip


def trained(stack: str, seed: int, block_times: list[float]) -> Trained:
    """Two steps a block, no warm-up; the loss falls by 0.1 a step from 2, accuracy rises by 0.1 a block."""
    steps = [time for time in block_times for _ in range(2)]
    clock = [math.fsum(steps[: number + 1]) for number in range(len(steps))]
    losses = [2.0 - 0.1 * number for number in range(len(steps))]
    ends = [0.0, *clock[1::2]]
    judged = [(end, 2.0 - number, 0.1 * (number + seed)) for number, end in enumerate(ends)]
    return Trained(stack, seed, losses, clock, block_times, judged, [100.0] * len(block_times), peak_bytes=1000 + seed)


@pytest.fixture
def outcome(tiny) -> Outcome:
    """Return `merged` twice as fast as `plain` and `small` equally fast with noise, each under two seeds."""
    recipe = tiny("measure={blocks: 3, steps: 2, warmup: 0}", "target={metric: val_accuracy, reach: 0.2}")
    runs = [
        trained(stack, seed, times)
        for seed in (0, 1)
        for stack, times in {"plain": [4.0, 4.2, 4.1], "merged": [2.0, 2.1, 2.06], "small": [3.0, 5.0, 4.4]}.items()
    ]
    return Outcome(recipe, predict(recipe), runs, notes=("a note",))


def test_gains_are_paired_and_pooled_over_seeds(outcome) -> None:
    found = results(outcome)
    assert found["merged"].speedup.median == pytest.approx(2.0)
    assert found["merged"].speedup.n == 6
    assert found["merged"].speedup.distinguishable
    assert found["merged"].speedup.comparisons == 2
    assert not found["small"].speedup.distinguishable
    assert (found["plain"].speedup.median, found["plain"].speedup.distinguishable) == (1.0, False)
    assert found["plain"].step_time_s.median == 4.1
    assert found["plain"].peak_bytes == 1001


def test_quality_is_read_at_the_time_of_the_stack_that_ended_first(outcome) -> None:
    found = results(outcome)
    until = 2 * (2.0 + 2.1 + 2.06)
    assert [result.quality.seconds for result in found.values()] == pytest.approx([until] * 3)
    # merged has made all its 6 steps by then, plain hardly 3.
    assert found["merged"].quality.accuracy_then == pytest.approx(0.35)
    assert found["plain"].quality.accuracy_then == pytest.approx(0.05 + 0.1 + 0.1 * (until - 8.0) / 8.4)
    assert found["merged"].quality.loss_then < found["plain"].quality.loss_then
    assert found["plain"].quality.last_loss == pytest.approx(2.0 - 0.25)  # mean of all six steps: fewer than the window


def test_time_to_target_is_a_mean_over_seeds_that_all_reached_it(outcome) -> None:
    found = results(outcome)
    # Seed 0 reaches 0.2 after its second block, seed 1 after its first.
    assert found["plain"].quality.time_to_target_s == pytest.approx((2 * (4.0 + 4.2) + 2 * 4.0) / 2)
    outcome.trained[0].judged[:] = [(0.0, 1.0, 0.0)]
    assert results(outcome)["plain"].quality.time_to_target_s is None


def test_prediction_error_is_predicted_over_measured_less_1(outcome) -> None:
    found = results(outcome)
    predicted = outcome.forecast.stacks["merged"].step_time_s.median
    assert found["merged"].prediction_error == pytest.approx(predicted / 2.06 - 1)
    assert median_prediction_error(found) == sorted(abs(each.prediction_error) for each in found.values())[1]


def test_the_document_has_the_promised_keys(outcome) -> None:
    found = document(outcome, results(outcome), "measured")
    assert {"experiment", "mode", "stacks"} <= found.keys()
    assert (found["experiment"], found["mode"], found["notes"]) == ("tiny", "measured", ["a note"])
    for stack in found["stacks"].values():
        assert stack.keys() >= KEYS
        assert stack["step_time_s"].keys() == {"median", "lo", "hi"}
        assert stack["loss"].keys() == {"first", "last"}
        assert list(stack["speedup"]) == ["over", "median", "lo", "hi", "level", "n", "method", "distinguishable"]
        assert stack["conformant"] is True
    assert found["stacks"]["small"]["note"].startswith("not distinguishable (n=6; a 1 % gain would need")
    assert found["stacks"]["small"]["lossless"] is False


def test_a_simulated_document_has_the_same_keys_and_claims_nothing_measured(tiny) -> None:
    forecast = predict(tiny())
    found = simulated_document(forecast)
    assert found["mode"] == "simulated"
    for name, stack in found["stacks"].items():
        assert stack.keys() >= KEYS
        assert stack["step_time_s"]["median"] == forecast.stacks[name].step_time_s.median
        assert stack["speedup"]["median"] == forecast.speedup(name)
        measured = ("prediction_error", "loss", "accuracy", "conformant")
        assert [stack[key] for key in measured] == [None] * 4


def test_an_odd_block_is_named_as_the_user_counts(tiny) -> None:
    two = "stacks={plain: [wfbp], merged: [mg-wfbp]}"
    recipe = tiny("seeds=[0]", "measure={blocks: 6, steps: 2, warmup: 0}", two, "when={}")
    runs = [
        trained("plain", 0, [4.0, 4.1, 4.0, 4.2, 4.1, 4.0]),
        trained("merged", 0, [2.0, 2.05, 2.0, 2.1, 1.0, 2.0]),
    ]
    outcome = Outcome(recipe, predict(recipe), runs)
    note = document(outcome, results(outcome), "measured")["stacks"]["merged"]["note"]
    assert note == "far from the others: block 5"
