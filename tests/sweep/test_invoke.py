"""One invocation: totals, what is not run twice, what is refused before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orch.errors import OrchError, RunError
from orch.experiment.show import Terminal
from orch.sweep.doing import Asked
from orch.sweep.invoke import sweep
from orch.sweep.simulated import Simulator


def test_a_sweep_finds_the_best_and_keeps_every_trial(simulate, tmp_path) -> None:
    found = simulate()
    assert found["counts"] == {"complete": 12}
    assert found["mode"] == "simulated"
    values = [trial["values"]["step_time_s"] for trial in found["trials"]]
    assert found["best"]["values"]["step_time_s"] == min(values)
    assert (tmp_path / "runs/search/sweeps/search, simulated.journal").is_file() or found["storage"].endswith(
        ".journal"
    )


def test_the_same_line_again_runs_nothing(simulate, monkeypatch) -> None:
    first = simulate("sweep.confirm=false")
    monkeypatch.setattr(Simulator, "values", lambda self, trial: pytest.fail("a trial was run twice"))
    assert simulate("sweep.confirm=false") == first


def test_a_study_that_cannot_be_kept_is_a_line(search) -> None:
    with pytest.raises(OrchError, match="cannot keep a study under /proc/no/search/sweeps: No such file"):
        sweep(Asked(str(search), simulate=True, runs=Path("/proc/no"), track=False), Terminal())


def test_the_gain_is_that_of_best_over_baseline(simulate) -> None:
    confirmed = simulate()["best"]["confirmed"]
    assert (confirmed["mode"], confirmed["over"]) == ("simulated", "ddp")
    ratio = confirmed["baseline"]["step_time_s"] / confirmed["values"]["step_time_s"]
    assert confirmed["gain"]["median"] == pytest.approx(ratio)


def test_the_total_is_the_studys(simulate) -> None:
    assert len(simulate(trials=5)["trials"]) == 5
    assert len(simulate(trials=9)["trials"]) == 9
    assert len(simulate(trials=3)["trials"]) == 9


def test_equal_cells_are_worked_out_once(simulate, monkeypatch) -> None:
    real, seen = Simulator.values, []

    def values(self, trial):
        seen.append(json.dumps([member.config.model_dump() for member in trial.recipe.stacks[trial.stack].members]))
        return real(self, trial)

    monkeypatch.setattr(Simulator, "values", values)
    over = "sweep.over={stack: [merged, small], techniques.acp-sgd.rank: [1, 2]}"
    found = simulate(over, "sweep.confirm=false", trials=20)
    assert len(found["trials"]) == 20
    assert len(seen) == len(set(seen)) == 3


def test_equal_cells_are_worked_out_again_when_asked(simulate, monkeypatch) -> None:
    real, seen = Simulator.values, []
    monkeypatch.setattr(Simulator, "values", lambda self, trial: seen.append(trial.stack) or real(self, trial))
    over = "sweep.over={stack: [merged, small], techniques.acp-sgd.rank: [1, 2]}"
    found = simulate(over, "sweep.confirm=false", "sweep.reuse=false", trials=12)
    assert len(seen) == 12
    assert not any("same_as" in trial for trial in found["trials"])


def test_a_grid_has_the_size_of_its_space(simulate) -> None:
    found = simulate(
        "sweep.over={stack: [merged, small], techniques.acp-sgd.rank: [1, 2]}", "sweep.sampler=GridSampler"
    )
    assert [trial["params"] for trial in found["trials"]] == [
        {"stack": "merged"}, {"stack": "small", "techniques.acp-sgd.rank": 1}, {"stack": "small", "techniques.acp-sgd.rank": 2}
    ]  # fmt: skip
    assert len(simulate("sweep.over={stack: [merged, small], techniques.acp-sgd.rank: [1, 2]}", "sweep.sampler=GridSampler",
                        trials=2)["trials"]) == 3  # fmt: skip


@pytest.mark.parametrize("sampler", ["TPESampler", "QMCSampler", "NSGAIISampler"])
def test_optunas_samplers(simulate, sampler: str) -> None:
    over = "sweep.over={stack: [buckets, merged], techniques.bucketed.cap: {low: 16KiB, high: 1MiB}}"
    assert simulate(f"sweep.sampler={sampler}", over, trials=15)["counts"] == {"complete": 15}


def test_several_objectives_and_a_bound(simulate) -> None:
    found = simulate("sweep.minimize=[step_time, payload]", "sweep.constraints={memory: {at_most: 1GiB}}", trials=10)
    assert set(found["trials"][0]["values"]) == {"step_time_s", "payload_bytes", "memory_bytes"}
    assert found["pareto"]
    assert found["best"]["number"] in found["pareto"]


def test_a_bound_that_nothing_keeps_leaves_no_best(simulate) -> None:
    found = simulate("sweep.constraints={memory: {at_most: 1B}}")
    assert found["best"] is None
    assert found["counts"] == {"complete": 12}


def test_infeasible_trials_are_run_again_in_new_ones(simulate) -> None:
    over = "sweep.over={stack: [merged], train.global_batch: [16, 17]}"
    sampler = "sweep.sampler=GridSampler"
    with pytest.raises(OrchError, match=r"train.global_batch=17: train.global_batch 17 cannot be divided"):
        simulate(over, sampler)


def test_failed_trials_are_run_again_on_request(simulate, monkeypatch) -> None:
    real = Simulator.values

    def values(self, trial):
        if trial.stack == "small":
            raise RunError(f"rank 0 raised {trial.recipe.stacks['small'].members[0].config}", code="E702")
        return real(self, trial)

    grid = ("sweep.over={stack: [merged, small], techniques.acp-sgd.rank: [1, 2]}", "sweep.sampler=GridSampler")
    monkeypatch.setattr(Simulator, "values", values)
    assert simulate(*grid)["counts"] == {"complete": 1, "failed": 2}
    monkeypatch.undo()
    again = simulate(*grid, only="failed")
    assert again["counts"] == {"complete": 3}
    assert [trial.get("replaces") for trial in again["trials"]] == [None, 1, 2]
    assert simulate(*grid, only="failed") == again


def test_the_same_error_stops_it(simulate, monkeypatch) -> None:
    def values(self, trial):
        raise RunError("rank 0 raised KeyError: 'x'", code="E702")

    monkeypatch.setattr(Simulator, "values", values)
    with pytest.raises(RunError, match=r"^study search, simulated stopped: the same error came 3 times: .*\[E637\]$"):
        simulate("sweep.over={stack: [buckets], techniques.bucketed.cap: {low: 1B, high: 1GiB}}")


def test_what_is_refused_before_anything_starts(simulate, search, tmp_path) -> None:
    for overrides, code in [
        (["sweep=null"], "E636"),
        (["sweep.minimize=val_loss"], "E243"),
        (["techniques.acp-sgd.rank=2"], "E631"),
        (["sweep.sampler={TPESampler: {x: 1}}"], "E632"),
        (["sweep.pruner={MedianPruner: {x: 1}}"], "E632"),
        (["sweep.storage=/proc/no/place"], "E633"),
    ]:
        with pytest.raises(OrchError) as caught:
            simulate(*overrides)
        assert caught.value.code == code, overrides
        assert caught.value.where is not None or code == "E636", "the place of what is wrong"
    with pytest.raises(OrchError) as caught:
        sweep(Asked(str(search), runs=tmp_path / "runs"), Terminal())
    assert caught.value.code == "E605"
