"""What Optuna refuses late is refused before anything is made."""

from __future__ import annotations

import pytest

from orch.errors import OrchError
from orch.sweep.rehearsal import rehearse

TPE, NONE = {"TPESampler": {}}, {"NopPruner": {}}


@pytest.mark.parametrize(
    ("sampler", "pruner", "directions", "line"),
    [
        ({"TPESampler": {"n_ei_candidates": 0}}, NONE, 1, "TPESampler: .*must be positive"),
        ({"CmaEsSampler": {}}, NONE, 2, "CmaEsSampler"),
        (TPE, {"HyperbandPruner": {"max_resource": "long"}}, 1, "HyperbandPruner: .*max_resource"),
        (TPE, {"SuccessiveHalvingPruner": {"min_resource": "long"}}, 1, "SuccessiveHalvingPruner: .*min_resource"),
    ],
)
def test_arguments_that_fail_when_used_are_one_line(recipe, sampler, pruner, directions: int, line: str) -> None:
    space = recipe("sweep.over={stack: [buckets], techniques.bucketed.cap: {low: 16KiB, high: 1MiB}}").space
    with pytest.raises(OrchError, match=rf"{line}.*\[E632\]$"):
        rehearse(sampler, pruner, space, ["minimize"] * directions)


@pytest.mark.parametrize("name", ["TPESampler", "RandomSampler", "NSGAIISampler", "QMCSampler", "GridSampler"])
def test_what_works_passes_without_a_word(recipe, name: str, recwarn) -> None:
    space = recipe("sweep.over={stack: [buckets, small], techniques.acp-sgd.rank: [1, 2]}").space
    rehearse({name: {}}, {"MedianPruner": {}}, space, ["minimize"])
    rehearse({name: {}}, NONE, space, ["minimize", "maximize"])
    assert not recwarn.list


def test_a_refused_sweep_leaves_nothing(simulate, search, tmp_path) -> None:
    for override in (
        "sweep.sampler={TPESampler: {n_ei_candidates: 0}}", "sweep.deadline=walltime", "sweep.pruner=ThresholdPruner",
        "sweep.minimize=val_loss",
    ):  # fmt: skip
        with pytest.raises(OrchError) as caught:
            simulate(override, track=True)
        assert str(caught.value).startswith(f"override 1: {override}: "), caught.value
    assert not (tmp_path / "runs").exists()
