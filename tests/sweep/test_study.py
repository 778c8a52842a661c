"""A study: exactly so many trials, none lost, none left, whoever was killed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from orch.errors import OrchError
from orch.sweep.metrics import Constraint, Objective, Sought
from orch.sweep.samplers import Samplers
from orch.sweep.study import About, Plan, Record, Store, best_of

TIME = Sought((Objective("step_time", False),))
DEAD = {"host": "x", "boot": "y", "pid": 1, "born": "0"}


def store(recipe, root: Path, sought: Sought = TIME, url: str | None = None) -> Store:
    assert recipe.sweep is not None
    samplers = Samplers(recipe.sweep.sampler, 0, recipe.space)
    plan = Plan("s", url or str(root / "s.journal"), recipe.space, sought, samplers, recipe.sweep.pruner)
    return Store(plan, {}, root / "turn")


@pytest.mark.parametrize("url", [None, "sqlite"])
def test_a_study_has_as_many_trials_as_asked_for(recipe, tmp_path, url) -> None:
    found = store(recipe(), tmp_path, url=url and f"sqlite:///{tmp_path}/s.db")
    for number in range(3):
        ticket = found.ask(3)
        assert ticket is not None
        assert ticket.number == number
        found.tell(ticket, About("complete", {"step_time": 1.0 + number}, "cell", "measured"))
    assert found.ask(3) is None
    again = store(recipe(), tmp_path, url=url and f"sqlite:///{tmp_path}/s.db")
    assert not again.created
    assert [(r.number, r.state, r.about.values, r.about.mode) for r in again.records()] == [
        (n, "complete", {"step_time": 1.0 + n}, "measured") for n in range(3)
    ]
    assert again.ask(4) is not None


def test_params_are_as_a_recipe_writes_them(recipe, tmp_path) -> None:
    found = store(recipe(), tmp_path)
    tickets = [found.ask(20) for _ in range(20)]
    for ticket, record in zip(tickets, found.records(), strict=True):
        assert ticket is not None
        assert record.params == ticket.chosen
        cap = record.params.get("techniques.bucketed.cap")
        assert (record.params["stack"] == "buckets") is (cap is not None)
        assert cap is None or cap.endswith("B")


def test_a_trial_of_a_dead_driver_keeps_its_number_and_values(recipe, tmp_path) -> None:
    first = store(recipe(), tmp_path)
    lost = first.ask(2)
    assert lost is not None
    first.study._storage.set_trial_user_attr(lost.trial._trial_id, "orch.owner", {**first._owner, "pid": 2**22 - 1})
    second = store(recipe(), tmp_path)
    taken = second.ask(2)
    assert taken is not None
    assert (taken.number, taken.chosen, taken.attempts) == (lost.number, lost.chosen, 2)
    assert [record.state for record in second.records()] == ["running"]


def test_a_trial_of_a_living_driver_is_left_alone(recipe, tmp_path) -> None:
    first, second = store(recipe(), tmp_path), store(recipe(), tmp_path)
    assert first.ask(2).number == 0
    assert second.ask(2).number == 1
    assert second.ask(2) is None


def test_what_another_host_runs_counts_as_alive(recipe, tmp_path) -> None:
    found = store(recipe(), tmp_path)
    ticket = found.ask(2)
    assert ticket is not None
    found.study._storage.set_trial_user_attr(ticket.trial._trial_id, "orch.owner", DEAD)
    assert found.ask(2).number == 1


def test_a_trial_given_back_waits_for_whoever_asks(recipe, tmp_path) -> None:
    found = store(recipe(), tmp_path)
    ticket = found.ask(1)
    assert ticket is not None
    found.release(ticket)
    assert found.records()[0].state == "waiting"
    again = store(recipe(), tmp_path).ask(1)
    assert again is not None
    assert (again.number, again.chosen) == (ticket.number, ticket.chosen)


def test_only_what_was_left(recipe, tmp_path) -> None:
    found = store(recipe(), tmp_path)
    assert found.ask(5, new=False) is None
    found.release(found.ask(5))
    assert found.ask(5, new=False) is not None


def test_two_drivers_share_a_study_and_repeat_no_point(recipe, tmp_path) -> None:
    base = recipe("sweep.over={stack: [buckets], techniques.bucketed.cap: {low: 1B, high: 1GiB}}")
    stores = [store(base, tmp_path) for _ in range(2)]
    caps: list[str] = []

    def work(own: Store) -> None:
        while (ticket := own.ask(30)) is not None:
            caps.append(ticket.chosen["techniques.bucketed.cap"])
            own.tell(ticket, About("complete", {"step_time": 1.0}))

    threads = [threading.Thread(target=work, args=(own,)) for own in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(caps) == len(set(caps)) == 30
    assert [record.state for record in stores[0].records()] == ["complete"] * 30


def test_points_are_those_of_an_unbroken_sweep(recipe, tmp_path) -> None:
    """Taken up again after every trial, a sweep proposes what it would have proposed anyway."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole = store(recipe(), tmp_path / "a")
    expected = [whole.ask(6).chosen for _ in range(6)]
    broken = []
    for _ in range(6):
        own = store(recipe(), tmp_path / "b")
        ticket = own.ask(6)
        broken.append(ticket.chosen)
        own.tell(ticket, About("complete", {"step_time": 1.0}))
    assert broken == expected


KILLED = """
import os, signal, sys
from pathlib import Path
from orch.recipe import load
from tests.sweep.test_study import About, store
own = store(load(sys.argv[1]), Path(sys.argv[2]))
left = int(sys.argv[3])
while (ticket := own.ask(12)) is not None:
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    own.tell(ticket, About("complete", {"step_time": 1.0 + ticket.number}))
"""


def test_killed_in_the_middle_of_a_trial(recipe, search, tmp_path) -> None:
    root = Path(__file__).resolve().parents[2]
    for left in (2, 0, 3):
        done = subprocess.run([sys.executable, "-c", KILLED, search, tmp_path, str(left)], cwd=root, check=False)
        assert done.returncode == -9
    assert [record.state for record in store(recipe(), tmp_path).records()] == ["complete"] * 5 + ["running"]
    subprocess.run([sys.executable, "-c", KILLED, search, tmp_path, "99"], cwd=root, check=True)
    records = store(recipe(), tmp_path).records()
    assert [record.number for record in records] == list(range(12))
    assert {record.state for record in records} == {"complete"}


def test_infeasible_trials_and_bounds_reach_the_sampler(recipe, tmp_path) -> None:
    sought = Sought(TIME.objectives, (Constraint("memory", 100.0, True),))
    found = store(recipe(), tmp_path, sought)
    found.tell(found.ask(3), About("infeasible", reason="out of memory"))
    found.tell(found.ask(3), About("complete", {"step_time": 1.0, "memory": 150.0}))
    found.tell(found.ask(3), About("complete", {"step_time": 2.0, "memory": 50.0}))
    frozen = found.study.get_trials()
    assert [list(trial.constraints.values()) for trial in frozen] == [[1.0], [0.5], [-0.5]]
    best = best_of(found.records(), sought)
    assert best is not None
    assert best.number == 2  # the faster one does not fit
    assert best_of(found.records()[:2], sought) is None


def test_several_objectives_have_a_front(recipe, tmp_path) -> None:
    sought = Sought((Objective("step_time", False), Objective("throughput", True)))
    found = store(recipe(), tmp_path, sought)
    for time, speed in ((2.0, 20.0), (1.0, 10.0), (3.0, 5.0)):
        found.tell(found.ask(4), About("complete", {"step_time": time, "throughput": speed}))
    found.tell(found.ask(4), About("infeasible", reason="x"))
    assert best_of(found.records(), sought).number == 1
    assert [trial.number for trial in found.study.best_trials] == [0, 1]


def test_a_record_as_json() -> None:
    about = About("complete", {"step_time": 1.0}, "c", "measured", run_dir="r", contended=True, same_as=0)
    assert Record(3, "complete", {"stack": "a"}, about).to_json() == {
        "number": 3, "state": "complete", "params": {"stack": "a"}, "values": {"step_time_s": 1.0}, "mode": "measured",
        "run_dir": "r", "same_as": 0, "contended": True,
    }  # fmt: skip
    assert Record(4, "running", {}, About("running")).to_json()["values"] is None
    json.dumps(Record(3, "complete", {}, about).to_json())


def test_a_sampler_that_cannot_propose_gives_the_trial_back(recipe, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = store(recipe("sweep.sampler=TPESampler"), tmp_path)
    missing = ModuleNotFoundError("No module named 'cmaes'")
    monkeypatch.setattr("orch.sweep.study.suggested", lambda *given: (_ for _ in ()).throw(missing))
    with pytest.raises(OrchError, match=r"^TPESampler needs a library that is not installed: No module .*\[E632\]$"):
        found.ask(3)
    assert [record.state for record in found.records()] == ["waiting"]
    monkeypatch.undo()
    assert found.ask(3).number == 0


def test_a_pruner_that_only_its_use_refuses_is_named(recipe, tmp_path) -> None:
    found = store(recipe("sweep.pruner={HyperbandPruner: {min_resource: -1}}"), tmp_path)
    first, second = found.ask(2), found.ask(2)
    assert first is not None
    assert second is not None
    assert not found.report(first, 1.0, 1)
    found.tell(first, About("complete", {"step_time": 1.0}, "cell", "measured"))
    with pytest.raises(OrchError, match="HyperbandPruner: math domain error"):
        found.report(second, 1.0, 1)
