"""The driver of a real run: blocks, seeds, curves, and that nothing spoiled passes for a result."""

from __future__ import annotations

import csv
import itertools
import json
import os
import signal
from collections import Counter

import pytest

from orch.errors import RunError
from orch.experiment.execute import Execution
from orch.experiment.show import Quiet
from orch.experiment.statistics import block_orders
from orch.gang import make_gang
from orch.runtime import session
from orch.track.tracker import Untracked
from tests.experiment import saboteurs
from tests.experiment.conftest import run_of


def test_every_stack_and_seed_trains_all_its_blocks(finished) -> None:
    trained = finished.outcome.trained
    assert [(run.seed, run.stack) for run in trained] == [
        (seed, stack) for seed in (0, 1) for stack in ("plain", "merged", "small")
    ]
    for run in trained:
        assert len(run.losses) == len(run.clock_s) == 1 + 2 * 3
        assert len(run.block_times_s) == len(run.payload_bytes) == 2
        assert run.clock_s == sorted(run.clock_s)
        assert [clock for clock, _, _ in run.judged] == pytest.approx([0.0, run.clock_s[3], run.clock_s[6]])


def test_stacks_start_alike_and_seeds_do_not(finished) -> None:
    first = {(run.stack, run.seed): run.judged[0][1:] for run in finished.outcome.trained}
    assert first["plain", 0] == first["merged", 0] == first["small", 0]
    assert first["plain", 0] != first["plain", 1]


def test_lossless_stacks_learn_the_same_and_a_setting_of_when_counts(finished) -> None:
    plain, merged, small = (finished.outcome.of(name)[0].losses for name in ("plain", "merged", "small"))
    assert merged == pytest.approx(plain, rel=1e-4)
    assert small != pytest.approx(plain, rel=1e-4)
    assert small[0] == pytest.approx(plain[0], rel=1e-6)  # the first batch and the first parameters are shared


def test_a_timeline_of_rank_0_is_kept_for_each(finished) -> None:
    for run in finished.outcome.trained:
        assert run.timeline is not None
        assert run.timeline.mode == "measured"
        assert len(run.timeline) >= 2


def test_predictions_rest_on_what_the_warm_up_measured(finished) -> None:
    for stack in finished.outcome.forecast.stacks.values():
        assert stack.step_time_s.basis == "measured layer times, measured links"
    environment = json.loads((finished.path / "environment.json").read_text())
    assert environment["links"]["intra"]["measured"]
    assert [worker["rank"] for worker in environment["workers"]] == [0, 1]
    assert environment["seeds"] == [0, 1]


def test_steps_are_kept_with_their_block_and_time(finished) -> None:
    with (finished.path / "stacks/merged/steps.seed1.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["block"] for row in rows] == ["", *"000", *"111"]
    assert [bool(row["step_time_s"]) for row in rows] == [False] + [True] * 6
    run = finished.outcome.of("merged")[1]
    assert [float(row["loss"]) for row in rows] == pytest.approx(run.losses)
    assert [float(row["clock_s"]) for row in rows] == pytest.approx(run.clock_s)
    assert (finished.path / "stacks/merged/plan.json").exists()


def test_progress_counts_all_steps_once(finished) -> None:
    show = finished.show
    assert show.steps == 2 * 3 * 7
    counts = [steps for _, steps, _ in show.seen]
    assert counts == sorted(counts)
    assert counts[-1] == show.steps
    assert all(speed > 0 for _, _, speed in show.seen)
    assert {"plain, seed 0, block 1 of 2", "small, seed 1, block 2 of 2"} <= {where for where, _, _ in show.seen}


def test_blocks_come_in_the_shuffled_order(finished) -> None:
    for seed in (0, 1):
        cells = list(dict.fromkeys(where for where, _, _ in finished.show.seen if f"seed {seed}, block" in where))
        order = [cell.split(",")[0] for cell in cells]
        assert [order[:3], order[3:]] == block_orders(["plain", "merged", "small"], 2, seed)


def test_a_record_that_differs_from_the_plan_ends_the_run(tiny, tmp_path) -> None:
    recipe = tiny("seeds=[0]")

    def spoil(gang):
        return saboteurs.Spoiled(gang, session.run_block, saboteurs.report_other_bytes, "merged")

    with pytest.raises(RunError, match=r"^stack merged: rank 1 did not run its plan: .* \[E610\]$") as caught:
        run_of(recipe, tmp_path, spoil)
    assert caught.value.exit_code == 3


def test_ranks_that_disagree_end_the_run(tiny, tmp_path) -> None:
    def spoil(gang):
        return saboteurs.Spoiled(gang, session.fingerprint, saboteurs.nudge, "plain")

    with pytest.raises(
        RunError, match=r"^stack plain: after training, rank 1 holds other parameters than rank 0.*\[E611\]"
    ):
        run_of(tiny("seeds=[0]"), tmp_path, spoil)


class _Killed(saboteurs.Around):
    """A gang in which rank 1 is killed when the given block of a stack begins."""

    def __init__(self, gang, stack: str, calls: int) -> None:
        super().__init__(gang)
        self._stack, self._calls = stack, calls
        self.seen: Counter[str] = Counter()

    def call(self, function, *args, **named):
        if function is session.run_block:
            self.seen[args[0]] += 1
            if self.seen[self._stack] == self._calls and args[0] == self._stack:
                os.kill(self._gang.call(pid)[1], signal.SIGKILL)
        return self._gang.call(function, *args, **named)


def pid(worker) -> int:
    return os.getpid()


def test_a_stack_that_fails_names_its_cell_and_keeps_what_was_done(tiny) -> None:
    recipe = tiny("measure.blocks=4", "seeds=[0]")
    with make_gang("processes", 2) as gang:
        execution = Execution(recipe, _Killed(gang, "merged", calls=1 + 3), Untracked(), Quiet())
        with pytest.raises(RunError, match=r"^stack merged, block 3 of 4: rank 1 of 2 died.*signal 9"):
            execution.all()
    part = execution.outcome.comparable()
    assert {len(run.block_times_s) for run in part.trained} == {2}
    assert {len(run.losses) for run in part.trained} == {1 + 2 * 3}
    assert {len(run.judged) for run in part.trained} == {3}


def test_nothing_is_comparable_before_every_stack_has_a_block(tiny) -> None:
    with make_gang("processes", 2) as gang:
        execution = Execution(tiny("seeds=[0]"), _Killed(gang, "small", calls=1), Untracked(), Quiet())
        with pytest.raises(RunError, match=r"^stack small: rank 1 of 2 died"):
            execution.all()
    assert execution.outcome.comparable() is None


def test_one_worker_needs_no_links(tiny) -> None:
    recipe = tiny("seeds=[0]", "stacks={plain: [wfbp]}", "when={}", workers=1)
    with make_gang("inline", 1) as gang:
        outcome = Execution(recipe, gang, Untracked(), Quiet()).all()
    assert outcome.forecast.stacks["plain"].footprint.wire == 0
    assert len(outcome.trained[0].block_times_s) == 2


def test_a_training_goes_on_after_its_measurement_untimed(tiny) -> None:
    settings = ("seeds=[0]", "stacks={plain: [wfbp]}", "when={}", "train.learning_rate={shape: cosine, warmup: 2}")
    recipe = tiny(*settings, "train.steps=12", workers=1)
    with make_gang("inline", 1) as gang:
        trained = Execution(recipe, gang, Untracked(), Quiet()).all().trained[0]
    assert recipe.measure.total == 7
    assert len(trained.losses) == 12
    assert len(trained.block_times_s) == recipe.measure.blocks == 2
    assert trained.judged[-1][0] == trained.clock_s[-1]
    # A cosine ends at 0: what is trained last moves the parameters less than what came before it.
    falls = [abs(later[1] - earlier[1]) for earlier, later in itertools.pairwise(trained.judged)]
    assert falls[-1] < max(falls)
