"""A study has one run: taken up again, begun by two at once, and whole when the last of them leaves."""

from __future__ import annotations

import json
import shutil
import threading
from functools import partial
from pathlib import Path

import pytest

from orch.sweep import sharing
from orch.sweep.doing import Sweeping
from orch.sweep.simulated import Simulator
from orch.track import state
from orch.track.directory import RunDirectory, find_all
from orch.track.tracker import Tracker


@pytest.fixture(autouse=True)
def _no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "Tracker", partial(Tracker, index=False))


def numbers(run: RunDirectory) -> list[int]:
    return sorted(json.loads(line)["number"] for line in (run.path / "trials.jsonl").read_text().splitlines())


def test_a_study_taken_up_again_goes_on_in_its_own_run(simulate, tmp_path) -> None:
    first = simulate(trials=4, track=True)
    again = simulate(trials=6, track=True)
    assert first["run_dir"] == again["run_dir"]
    (run,) = find_all(tmp_path / "runs")
    assert numbers(run) == list(range(6))
    assert [end["status"] for end in run.facts["ended_before"]] == ["done"]
    assert len(run.results["trials"]) == 6


def test_a_study_whose_run_is_gone_begins_another(simulate) -> None:
    first = simulate(trials=2, track=True)["run_dir"]
    shutil.rmtree(first)
    second = simulate(trials=3, track=True)["run_dir"]
    assert second != first
    assert simulate(trials=4, track=True)["run_dir"] == second


def test_a_guest_keeps_its_trials_in_the_run_of_the_driver_at_work(simulate, tmp_path) -> None:
    first = simulate(trials=2, track=True)
    results = Path(first["run_dir"], "results.json")
    before = results.read_bytes()
    state.write(Path(first["run_dir"]), state.new("running"))  # as if this process drove it now
    said: list[str] = []
    second = simulate(trials=3, track=True, said=said)
    assert second["run_dir"] == first["run_dir"]
    assert any("another driver is at work on search, simulated" in line for line in said)
    (run,) = find_all(tmp_path / "runs")
    assert numbers(run) == [0, 1, 2]
    assert results.read_bytes() == before  # they are the owner's to write
    assert run.state is not None and run.state.status == "running"


def test_a_guest_whose_host_has_gone_ends_the_run(simulate, monkeypatch, tmp_path) -> None:
    first = simulate(trials=2, track=True)["run_dir"]
    state.write(Path(first), state.new("running"))
    values = Simulator.values

    def last(self, trial):
        state.write(Path(first), state.new("running").to("done"))  # the host ends while the guest's trial still runs
        return values(self, trial)

    monkeypatch.setattr(Simulator, "values", last)
    found = simulate("sweep.reuse=false", trials=3, track=True)
    (run,) = find_all(tmp_path / "runs")
    assert run.state is not None and run.state.status == "done"
    assert len(run.results["trials"]) == len(found["trials"]) == 3
    assert "finished" not in found


def test_a_host_takes_up_what_a_guest_ended_while_it_wrote_its_results(simulate, monkeypatch, tmp_path) -> None:
    """A guest that tells its last trial after the host has looked, and leaves before the host has closed."""
    finish, ends = sharing.Store.count_finished, iter([5])
    monkeypatch.setattr(sharing.Store, "count_finished", lambda self: next(ends, None) or finish(self))
    simulate(trials=4, track=True)
    (run,) = find_all(tmp_path / "runs")
    assert [end["status"] for end in run.facts["ended_before"]] == ["done"]
    assert next(ends, None) is None


def test_drivers_that_begin_at_once_make_one_run(simulate, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("orch.track.tracker.signals_raise", lambda: __import__("contextlib").nullcontext())
    together = threading.Barrier(3)
    opened = sharing.in_run

    def at_once(doing: Sweeping, *rest):
        together.wait()
        return opened(doing, *rest)

    monkeypatch.setattr("orch.sweep.invoke.in_run", at_once)
    found: list[dict] = []
    drivers = [threading.Thread(target=lambda: found.append(simulate(trials=12, track=True))) for _ in range(3)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    (run,) = find_all(tmp_path / "runs")
    assert {one["run_dir"] for one in found} == {str(run.path)}
    assert numbers(run) == list(range(12))
    assert len(run.results["trials"]) == 12
    assert {trial["state"] for trial in run.results["trials"]} == {"complete"}
