"""What is kept of a trial of a sweep, in a folder of its own."""

from __future__ import annotations

import json
from pathlib import Path

from orch.track.steps import Step, read_steps
from orch.track.trials import TrialLog


def test_a_trial_keeps_files_steps_and_results(tmp_path: Path) -> None:
    log = TrialLog(tmp_path / "trials/7")
    log.start()
    log.write("recipe.yaml", "a: 1\n")
    log.write("plan.json", {"x": float("nan")}, stack="a/b")
    log.stack("dear").log_steps([Step(0, 0, 1.5, 0.1, 0.1)])
    log.environment(seeds=[0])
    log.finish({"done": True})
    assert (tmp_path / "trials/7/recipe.yaml").read_text() == "a: 1\n"
    assert json.loads((tmp_path / "trials/7/results.json").read_text()) == {"done": True}
    assert [step.loss for step in read_steps(tmp_path / "trials/7/stacks/dear/steps.seed0.csv")] == [1.5]
    assert len(list((tmp_path / "trials/7/stacks").iterdir())) == 2
    assert log.rank_log(1) == tmp_path / "trials/7/logs/rank1.log"


def test_a_trial_that_begins_again_begins_afresh(tmp_path: Path) -> None:
    for loss in (1.5, 2.5):
        log = TrialLog(tmp_path / "trials/7")
        log.stack("dear").log_steps([Step(0, 0, loss, 0.1, 0.1)])
        log.close()
    assert [step.loss for step in read_steps(tmp_path / "trials/7/stacks/dear/steps.seed0.csv")] == [2.5]


def test_an_untracked_trial_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = TrialLog(None)
    log.write("x", 1)
    log.stack("a").log_steps([Step(0, 0, 1.5, 0.1, 0.1)])
    log.finish({})
    assert (list(tmp_path.iterdir()), log.rank_log(0)) == ([], None)
