"""What a trial's end makes of it: infeasible, again, failed, cached; and when a sweep stops."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from orch.errors import OrchError, RunError
from orch.sweep.cells import CellStore
from orch.sweep.driver import Cells, Driver, Found, PrunedError
from orch.sweep.metrics import InfeasibleError, Sought
from orch.sweep.samplers import Samplers
from orch.sweep.settings import Settings
from orch.sweep.study import Plan, Record, Store


class Bench:
    """A study of the recipe whose trials answer what a function says."""

    def __init__(self, recipe, root: Path, evaluate, **settings) -> None:
        assert recipe.sweep is not None
        sought = Sought.of(recipe.sweep)
        samplers = Samplers(recipe.sweep.sampler, 0, recipe.space)
        plan = Plan("s", str(root / "s.journal"), recipe.space, sought, samplers, recipe.sweep.pruner)
        self.store = Store(plan, {}, root / "turn")
        self.seen: list[Record] = []
        self.running: list[int] = []
        self.cells = Cells("measured", {}, **settings)
        self.driver = Driver(self.store, Settings(recipe), self.cells, evaluate, self.see)

    def see(self, record: Record | None, running: int) -> None:
        self.running.append(running)
        if record is not None:
            self.seen.append(record)

    def states(self) -> list[str]:
        return [record.state for record in self.store.records()]


def answers(*outcomes):
    """Answer trial after trial with these values, or raise these errors."""
    left = list(outcomes)

    def evaluate(ticket, trial):
        outcome = left.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return Found({"step_time": outcome})

    return evaluate


@pytest.fixture
def bench(recipe, tmp_path):
    """Make a bench over a space without equal cells."""
    base = recipe("sweep.over={stack: [buckets], techniques.bucketed.cap: {low: 1B, high: 1GiB}}")
    return lambda evaluate, **settings: Bench(base, tmp_path, evaluate, **settings)


@pytest.mark.parametrize(
    ("outcome", "state", "reason"),
    [
        (1.0, "complete", ""),
        (float("nan"), "infeasible", "step_time is nan"),
        (float("inf"), "infeasible", "step_time is inf"),
        (InfeasibleError("too large"), "infeasible", "too large"),
        (PrunedError("after block 2"), "pruned", "after block 2"),
        (OrchError("no such pair", code="E510"), "infeasible", "no such pair [E510]"),
        (RunError("rank 0 of 2 raised OutOfMemoryError", code="E702"), "infeasible", "out of memory: rank 0"),
        (RunError("rank 1 raised ValueError: x", code="E702"), "failed", "rank 1 raised ValueError"),
    ],
)
def test_an_end_is_kept_as_what_it_is(bench, outcome, state: str, reason: str) -> None:
    found = bench(answers(outcome))
    found.driver.run(1)
    (record,) = found.store.records()
    assert record.state == found.seen[0].state == state
    assert record.about.reason.startswith(reason)
    assert bool(record.about.values) is (state == "complete")


def test_a_lost_worker_is_replaced_and_the_trial_keeps_its_number(bench) -> None:
    lost = RunError("rank 1 of 2 died (signal 9)", code="E701")
    found = bench(answers(lost, lost, 2.0, 3.0))
    found.driver.run(2, retries=2)
    assert [(r.number, r.state, r.about.attempts) for r in found.store.records()] == [
        (0, "complete", 3),
        (1, "complete", 1),
    ]


def test_a_worker_that_is_lost_again_and_again_fails_the_trial(bench) -> None:
    found = bench(answers(*[RunError("rank 1 of 2 died", code="E701") for _ in range(2)], 1.0))
    found.driver.run(2, retries=1)
    assert found.states() == ["failed", "complete"]


def test_the_same_error_three_times_stops_and_others_do_not(bench) -> None:
    errors = [RunError(f"rank {n} raised ValueError: x{n}", code="E702") for n in range(3)]
    found = bench(answers(errors[0], 1.0, errors[1], RunError("rank 0 raised KeyError", code="E702"), errors[2], 1.0))
    found.driver.run(10)
    assert found.states() == ["failed", "complete", "failed", "failed", "failed"]
    assert found.driver.stopped.startswith("the same error came 3 times: rank 2 raised ValueError")


def test_settings_that_cannot_be_together_never_stop_a_sweep(bench) -> None:
    found = bench(answers(1.0, *[OrchError("no", code="E510") for _ in range(5)]))
    found.driver.run(6)
    assert found.states() == ["complete"] + ["infeasible"] * 5


def test_what_no_trial_can_be_stops_it(bench) -> None:
    found = bench(answers(*[OrchError("no data", code="E441") for _ in range(5)]))
    found.driver.run(5)
    assert found.states() == ["infeasible"] * 3
    assert "no data" in found.driver.stopped


def test_equal_cells_run_once(recipe, tmp_path) -> None:
    base = recipe("sweep.over={stack: [merged], techniques.mg-wfbp.planner: auto}")
    found = Bench(base, tmp_path, answers(1.0, 2.0))
    found.driver.run(8)
    records = found.store.records()
    assert found.states() == ["complete"] * 8
    first = {record.params["techniques.mg-wfbp.planner"]: record for record in records if record.about.same_as is None}
    assert len(first) == 2
    for record in records:
        twin = first[record.params["techniques.mg-wfbp.planner"]]
        assert record.about.values == twin.about.values
        assert record is twin or record.about.same_as == twin.number


def test_a_cell_that_an_earlier_sweep_measured_is_not_run(bench, tmp_path) -> None:
    first = bench(answers(7.0), store=CellStore(tmp_path))
    first.driver.run(1)
    ticket_cell = first.store.records()[0].about.cell
    kept = CellStore(tmp_path).find(ticket_cell)
    assert kept == {"values": {"step_time": 7.0}, "run_dir": None}
    (tmp_path / "s.journal").unlink()
    again = bench(answers(), store=CellStore(tmp_path))
    again.driver.run(1)
    (record,) = again.store.records()
    assert (record.about.values, record.about.reason) == ({"step_time": 7.0}, "measured by an earlier sweep")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device"), ZeroDivisionError()])
def test_what_is_no_trials_fault_gives_the_trial_back(bench, error) -> None:
    found = bench(answers(1.0, error, 2.0, 3.0))
    with pytest.raises(type(error)):
        found.driver.run(3)
    assert found.states() == ["complete", "waiting"]
    given_back = found.store.records()[1].params
    found.driver.run(3)
    assert found.states() == ["complete"] * 3
    assert found.store.records()[1].params == given_back


def test_a_deadline_begins_no_more(bench) -> None:
    found = bench(answers())
    found.driver.run(3, until=0.0)
    assert (found.states(), found.driver.stopped) == ([], "deadline")


def test_slots_are_refilled_at_once(bench) -> None:
    """One slow trial does not hold the other slot up: it runs all the rest meanwhile."""
    rest_done = threading.Event()
    ended: list[int] = []

    def evaluate(ticket, trial):
        if ticket.number == 0:
            assert rest_done.wait(60)
        else:
            ended.append(ticket.number)
            if len(ended) == 5:
                rest_done.set()
        return Found({"step_time": 1.0 + ticket.number})

    found = bench(evaluate)
    found.driver.run(6, parallel=2)
    assert found.states() == ["complete"] * 6
    assert sorted(ended) == [1, 2, 3, 4, 5]
    assert max(found.running) == 2


def test_where_machines_are_taken_fewer_trials_run_at_a_time(bench) -> None:
    """A cluster with room for one gang: the other slots close, and what they had begun is run by the one that is left."""
    first_runs, refused = threading.Event(), threading.Event()

    def evaluate(ticket, trial):
        if ticket.number == 0 and not refused.is_set():
            first_runs.set()
            assert refused.wait(60)
        elif not refused.is_set():
            assert first_runs.wait(60)
            refused.set()
            raise RunError("2 CPUs did not become free", code="E722")
        return Found({"step_time": 1.0 + ticket.number})

    found = bench(evaluate)
    found.driver.run(4, parallel=2)
    assert found.states() == ["complete"] * 4
    assert found.driver.slots == 1
    assert [record.about.attempts for record in found.store.records()] == [1] * 4


def test_machines_that_never_become_free_fail_the_trial(bench) -> None:
    found = bench(answers(RunError("2 CPUs did not become free", code="E722"), 1.0))
    found.driver.run(2)
    assert found.states() == ["failed", "complete"]


def test_a_fault_in_one_slot_ends_all_and_leaves_none_running(bench) -> None:
    def evaluate(ticket, trial):
        if ticket.number == 2:
            raise ZeroDivisionError
        return Found({"step_time": 1.0})

    found = bench(evaluate)
    with pytest.raises(ZeroDivisionError):
        found.driver.run(50, parallel=3)
    assert "running" not in found.states()
    assert found.states()[2] == "waiting"
    assert len(found.states()) < 50
