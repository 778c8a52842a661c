"""The section `sweep`: its short forms, its limits, and that it names what Optuna has."""

from __future__ import annotations

from typing import get_args

import pytest

from orch.recipe import sweep
from orch.recipe.sweep import LEARNED, METRICS, PRUNERS, SAMPLERS, Metric, bound_value
from tests.recipe.conftest import GOOD

SWEEP = "sweep: {over: {stack: [plain, both], techniques.squeeze.rank: {low: 1, high: 8}}, minimize: step_time}\n"


def test_samplers_and_pruners_are_those_of_optuna() -> None:
    optuna = pytest.importorskip("optuna")
    for module, names in ((optuna.samplers, SAMPLERS), (optuna.pruners, PRUNERS)):
        assert [name for name in names if not hasattr(module, name)] == []
        offered = {
            name for name in module.__all__ if name.endswith(("Sampler", "Pruner")) and not name.startswith("Base")
        }
        assert offered - set(names) <= {"PartialFixedSampler"}


def test_every_metric_is_told() -> None:
    assert set(get_args(Metric)) == set(METRICS)
    assert set(LEARNED) < set(METRICS)


def test_short_forms_and_defaults(changed) -> None:
    found = changed("sweep.sampler=RandomSampler", "sweep.simulate_first=100", text=GOOD + SWEEP).sweep
    assert found.sampler == {"RandomSampler": {}}
    assert found.pruner == {"NopPruner": {}}
    assert (found.simulate_first.trials, found.simulate_first.confirm) == (100, 12)
    assert found.objectives == (("step_time", False),)
    assert found.trials is None
    assert changed("sweep.maximize=[throughput]", text=GOOD + SWEEP).sweep.objectives == (
        ("step_time", False),
        ("throughput", True),
    )


def test_a_recipe_with_a_sweep_reads_back(changed) -> None:
    import yaml

    recipe = changed("sweep.constraints={memory: {at_most: 8GiB}}", text=GOOD + SWEEP)
    again = changed(text=yaml.safe_dump(recipe.resolved(), sort_keys=False))
    assert again.sweep == recipe.sweep
    assert [parameter.to_json() for parameter in again.space] == [parameter.to_json() for parameter in recipe.space]


def test_a_child_replaces_a_range_by_choices(lab) -> None:
    from orch.recipe import load

    (lab / "r.yaml").write_text(GOOD + SWEEP)
    (lab / "child.yaml").write_text(
        "extends: r.yaml\nsweep: {over: {techniques.squeeze.rank: [2, 4]}, sampler: QMCSampler}\n"
    )
    found = load("child.yaml").sweep
    assert found.over["techniques.squeeze.rank"].choices == [2, 4]
    assert found.over["techniques.squeeze.rank"].low is None
    assert found.sampler == {"QMCSampler": {}}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("sweep.minimize=null", "must say what is sought: minimize or maximize, such as minimize: step_time [E215]"),
        ("sweep.minimize=tempo", "must be one of step_time, throughput"),
        ("sweep.maximize=step_time", "must name a metric once in minimize and maximize"),
        ("sweep.sampler=tpe", "did you mean TPESampler? [E215]"),
        (
            "sweep.sampler={TPESampler: {}, RandomSampler: {}}",
            "names TPESampler, RandomSampler, where one of TPESampler, ",
        ),
        ("sweep.pruner=Median", "did you mean MedianPruner? [E215]"),
        ("sweep.trials=0", "must be at least 1"),
        ("sweep.trials=many", "must be a whole number"),
        ("sweep.parallel=-1", "must be at least 1"),
        ("sweep.deadline=soon", "must be a time from now (90min), walltime, or walltime - 10min"),
        ("sweep.deadline=walltime - 10", "must be a time from now"),
        ("sweep.measure=alone", "must be one of exclusive, shared"),
        ("sweep.overr={}", "did you mean over? [E210]"),
        ("sweep.over={}", "must have at least 1 entry"),
        ("sweep.constraints={memory: {at_most: 16}}", "16 is not a size; write a number with its unit"),
        ("sweep.constraints={memory: {}}", "must hold exactly one of at_most, at_least"),
        (
            "sweep.constraints={val_loss: {at_most: low}}",
            "the bound of val_loss: must be a finite number; it is 'low' [E243]",
        ),
        (
            "sweep.constraints={val_loss: {at_most: .nan}}",
            "the bound of val_loss: must be a finite number; it is nan [E243]",
        ),
        ("sweep.over={techniques: [1]}", "techniques is no single setting; name a knob: techniques.NAME.KNOB"),
        ("sweep.over={techniques.squeeze: [1]}", "techniques.squeeze is no single setting; name a knob"),
        (
            "sweep.constraints={val_accuracy: {at_least: 2}}",
            "must lie between 0 and 1: an accuracy is a share; it is 2",
        ),
        ("sweep.constraints={heat: {at_most: 1}}", "unknown key 'heat' in sweep.constraints; allowed: step_time, "),
        ("sweep.constraints={memmory: {at_most: 1GiB}}", "did you mean memory? [E210]"),
        ("sweep.constraints={memory: 1GiB}", "must be a bound: {memory: {at_most: VALUE}}, or at_least; it is '1GiB'"),
        ("sweep.sampler=[TPESampler]", "must be one of Optuna's names, or {NAME: {argument: value}}; it is a list"),
        ("sweep.sampler=TPESampelr", "'TPESampelr' is none of TPESampler, "),
        ("sweep.deadline=1.2.3h", "must be a time from now (90min), walltime, or walltime - 10min; it is '1.2.3h'"),
        ("sweep.deadline=walltime - ..h", "must be a time from now (90min), walltime, or walltime - 10min"),
        ('sweep.study="a\\nb"', "must be printable text of at most 100 characters"),
        ("sweep.study=mine (2)", "without a number in brackets at its end"),
        ("sweep.minimize=time_to_target", "there is no target; add target: {metric: val_loss, reach: VALUE} [E243]"),
        ("sweep=3", "must be a mapping"),
    ],
)
def test_a_section_that_is_wrong_is_refused(fault, change: str, line: str) -> None:
    assert line in fault(GOOD + SWEEP, change)


def test_only_training_tells_a_loss(fault) -> None:
    line = fault(GOOD + SWEEP, "sweep.minimize=val_loss", "sweep.simulate_first=10")
    assert "simulate_first cannot tell val_loss: only training can" in line


def test_a_bound_is_read_in_its_unit() -> None:
    assert bound_value("memory", "1GiB") == 2**30
    assert bound_value("val_accuracy", 0.9) == 0.9
    assert sweep.unreadable("step_time", 5) is not None
    assert sweep.unreadable("step_time", "5ms") is None
