"""Real trials: measured by the code of `orch run`, pruned with all ranks at one boundary, retried, told apart."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from orch.gang import end_all, make_gang
from orch.recipe import load
from orch.report.stored import StoredRun
from orch.sweep import real
from orch.sweep.driver import Cells, Driver
from orch.sweep.metrics import InfeasibleError, Objective, Sought
from orch.sweep.pruning import Pruning
from orch.sweep.real import Bench
from orch.sweep.samplers import Samplers
from orch.sweep.settings import Settings
from orch.sweep.study import Plan, Store
from orch.track.directory import RunDirectory

ALL = ("step_time", "throughput", "speedup", "payload", "wire", "memory", "loss", "val_loss", "val_accuracy")
SMALL = {"stack": "small", "techniques.mg-wfbp.planner": "greedy", "techniques.acp-sgd.rank": 2}


class Sweeping:
    """A study of a recipe with real trials on processes of this machine."""

    def __init__(self, recipe, root: Path, sought: Sought, pruner: dict[str, dict[str, Any]] | None = None) -> None:
        pruner = pruner or {"NopPruner": {}}
        samplers = Samplers(recipe.sweep.sampler, 0, recipe.space)
        self.store = Store(Plan("s", str(root / "s"), recipe.space, sought, samplers, pruner), {}, root / "turn")
        self.bench = Bench("processes", sought, root, Pruning(self.store, sought, pruner))
        self.settings = Settings(recipe)

    def run(self, chosen: dict[str, Any]):
        ticket = self.store.ask(99)
        assert ticket is not None
        return ticket, self.bench(ticket, self.settings.trial(chosen))


def sought(*metrics: str) -> Sought:
    return Sought(tuple(Objective(name, name in ("throughput", "speedup", "val_accuracy")) for name in metrics))


def test_every_metric_of_a_trial_and_what_is_kept_of_it(recipe, tmp_path) -> None:
    ticket, found = Sweeping(recipe(), tmp_path, sought(*ALL)).run(SMALL)
    values = found.values
    assert set(values) == set(ALL)
    assert values["throughput"] == pytest.approx(2 * 8 / values["step_time"])
    assert 0 < values["payload"] < 60_000  # low rank: the dense gradient has 170 kB
    assert 0 <= values["val_accuracy"] <= 1
    folder = Path(found.run_dir)
    assert folder == tmp_path / "trials" / str(ticket.number)
    results = json.loads((folder / "results.json").read_text())
    assert set(results["stacks"]) == {"ddp", "small"}  # a speed-up has a baseline beside it
    assert (folder / "logs/rank1.log").exists()
    assert StoredRun(RunDirectory(folder)).stack("small").step_time_s > 0
    again = load(folder / "recipe.yaml")
    assert again.stacks["small"].members[0].config.rank == 2
    assert not found.contended


def test_a_pruned_trial_under_four_workers_leaves_with_all_ranks(recipe, tmp_path) -> None:
    """The second trial is hopeless: it ends after its first block, and the same workers run the next one whole."""
    base = recipe("cluster.devices_per_node=4", "measure={blocks: 3, steps: 2, warmup: 0}")
    pruner = {"ThresholdPruner": {"upper": 1e-9, "n_warmup_steps": 0}}
    doing = Sweeping(base, tmp_path, sought("step_time"), pruner)
    with pytest.raises(real.PrunedError, match=r"^after block 1 of 3$"):
        doing.run({"stack": "merged"})
    with make_gang("processes", 4, threads=real_threads()) as gang:
        pids = gang.call(_pid)
    free = Sweeping(base, tmp_path / "b", sought("step_time"))
    free.bench._known = doing.bench._known
    _, found = free.run({"stack": "merged"})
    assert found.values["step_time"] > 0
    with make_gang("processes", 4, threads=real_threads()) as gang:
        assert gang.call(_pid) == pids
        assert gang.call(_trainings) == [0] * 4


def real_threads() -> int:
    return max(1, len(os.sched_getaffinity(0)) // 4)


def _pid(worker) -> int:
    return os.getpid()


def _trainings(worker) -> int:
    return len(worker.cache["session"].trainings)


def test_two_objectives_prune_what_others_dominate(recipe, tmp_path, monkeypatch) -> None:
    base = recipe("measure={blocks: 2, steps: 2, warmup: 0}")
    doing = Sweeping(base, tmp_path, sought("step_time", "loss"), {"MedianPruner": {"n_startup_trials": 1}})
    given = iter([1.0, 1.0, 1.0, 1.0, 9.0, 9.0])  # both metrics after every block
    monkeypatch.setattr(real, "course_of", lambda trained, metric, recipe: next(given))
    ticket, found = doing.run({"stack": "merged"})
    from orch.sweep.study import About

    doing.store.tell(ticket, About("complete", found.values))
    with pytest.raises(real.PrunedError, match=r"^after block 1 of 2$"):
        doing.run({"stack": "merged"})
    assert next(given, None) is None
    assert doing.store.courses(but=99) == [{1: [1.0, 1.0], 2: [1.0, 1.0]}]


@pytest.mark.parametrize("metric", ["loss", "val_loss"])
def test_a_loss_that_is_no_number_is_infeasible(recipe, tmp_path, metric: str) -> None:
    base = recipe("train.optimizer.sgd.lr=1e30", "measure={blocks: 1, steps: 4, warmup: 0}")
    with pytest.raises(InfeasibleError, match=r"the loss of rank \d became (nan|inf) in step \d"):
        Sweeping(base, tmp_path, sought(metric)).run({"stack": "merged"})


def test_trials_that_met_on_one_machine_are_tagged(recipe, tmp_path) -> None:
    bench = Sweeping(recipe(), tmp_path, sought("step_time")).bench
    bench._meet(1, [{"host": "a"}])
    bench._meet(2, [{"host": "b"}])
    assert bench._contended == set()
    bench._meet(3, [{"host": "b"}, {"host": "c"}])
    assert bench._contended == {2, 3}


def test_a_killed_worker_costs_no_trial(recipe, tmp_path) -> None:
    doing = Sweeping(recipe(), tmp_path, sought("step_time"))
    killed: list[int] = []

    def evaluate(ticket, trial):
        if not killed:
            with make_gang("processes", 2, threads=max(1, len(os.sched_getaffinity(0)) // 2)) as gang:
                killed.append(gang.call(_pid)[1])
            os.kill(killed[0], signal.SIGKILL)  # the next gang is made of these workers, or fails by them
        return doing.bench(ticket, trial)

    driver = Driver(doing.store, doing.settings, Cells("measured", {}), evaluate, lambda record, running: None)
    driver.run(2)
    assert [record.state for record in doing.store.records()] == ["complete", "complete"]
    end_all()
