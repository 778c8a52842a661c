"""Samplers: the same point for the same number, grids whose cells come once, faults in a line."""

from __future__ import annotations

import optuna
import pytest

from orch.errors import OrchError, Position
from orch.recipe.space import Parameter
from orch.sweep.samplers import Samplers, as_category, cells, distribution, from_category, pruner_of

WHERE = Position("r", 1, 1)
STACK = Parameter("stack", ("stack",), WHERE, choices=("a", "b"))
RANK = Parameter("rank", ("rank",), WHERE, low=1, high=3, whole=True, when=(("stack", ("b",)),))
SHARE = Parameter("share", ("share",), WHERE, low=0.0, high=1.0)


def points(name: str, numbers: list[int], seed: int = 0) -> list[float]:
    samplers = Samplers({name: {}}, seed, [SHARE])
    found = []
    for number in numbers:
        study = optuna.create_study(sampler=samplers.at(number))
        found.append(study.ask().suggest_float("share", 0.0, 1.0))
    return found


@pytest.mark.parametrize("name", ["RandomSampler", "TPESampler", "NSGAIISampler"])
def test_a_point_hangs_on_seed_and_number_alone(name: str) -> None:
    first = points(name, [0, 1, 2, 3])
    assert points(name, [2, 3]) == first[2:]
    assert len(set(first)) == 4
    assert points(name, [0], seed=1) != first[:1]


def test_a_grid_has_every_cell_once_and_keeps_conditions() -> None:
    found = list(cells([STACK, RANK]))
    assert found == [{"stack": "a"}, *({"stack": "b", "rank": rank} for rank in (1, 2, 3))]
    assert Samplers({"GridSampler": {}}, 0, [STACK, RANK]).size == 4
    assert Samplers({"RandomSampler": {}}, 0, [STACK, RANK]).size is None


def test_a_grid_of_a_range_without_step_is_refused_at_its_place() -> None:
    with pytest.raises(OrchError, match=r"^r:1:1: a grid needs values that can be counted: share .*\[E632\]$"):
        Samplers({"GridSampler": {}}, 0, [STACK, SHARE])


@pytest.mark.parametrize(
    ("named", "line"),
    [
        ({"TPESampler": {"n_startup": 5}}, "TPESampler: got an unexpected keyword argument 'n_startup'"),
        ({"TPESampler": {"n_startup_trials": "x"}}, "TPESampler: n_startup_trials must be int; it is 'x'"),
        ({"TPESampler": {"n_startup_trials": True}}, "TPESampler: n_startup_trials must be int; it is True"),
        ({"TPESampler": {"gamma": 1}}, "TPESampler: gamma must be left out: it is no value that a recipe can hold"),
        ({"TPESampler": {"seed": 1}}, "TPESampler: the seed is the sweep's; write sweep: {seed: 1}"),
        ({"QMCSampler": {"qmc_type": 5}}, "QMCSampler: qmc_type must be str; it is 5"),
        ({"GridSampler": {"search_space": {}}}, "GridSampler takes no arguments here"),
    ],
)
def test_arguments_that_optuna_does_not_take(named: dict, line: str) -> None:
    with pytest.raises(OrchError) as caught:
        Samplers(named, 0, [STACK])
    assert caught.value.code == "E632"
    assert line in str(caught.value)


def test_arguments_of_the_declared_types_pass() -> None:
    Samplers({"TPESampler": {"n_startup_trials": 3, "multivariate": None, "group": False}}, 0, [STACK])
    assert isinstance(pruner_of({"ThresholdPruner": {"upper": 1}}), optuna.pruners.ThresholdPruner)


def test_a_pruner_takes_optunas_arguments() -> None:
    assert isinstance(pruner_of({"MedianPruner": {"n_startup_trials": 3}}), optuna.pruners.MedianPruner)
    with pytest.raises(OrchError, match=r"PercentilePruner: .*missing.*percentile.*\[E632\]"):
        pruner_of({"PercentilePruner": {}})


def test_choices_survive_optuna() -> None:
    parameter = Parameter("x", ("x",), WHERE, choices=(1, True, "a", None, [1, 2], {"k": 1.5}))
    for choice in parameter.choices:
        found = from_category(parameter, as_category(choice))
        assert found == choice
        assert type(found) is type(choice)


def test_distributions() -> None:
    assert distribution(RANK) == optuna.distributions.IntDistribution(1, 3)
    assert distribution(SHARE) == optuna.distributions.FloatDistribution(0.0, 1.0)
    log = Parameter("x", ("x",), WHERE, low=1.0, high=8.0, log=True)
    assert distribution(log) == optuna.distributions.FloatDistribution(1.0, 8.0, log=True)


@pytest.mark.parametrize(
    ("low", "high", "log", "fine"),
    [(1 << 10, 1 << 20, False, True), (1 << 14, 1 << 20, True, True), (1, 64, True, False), (1, 9999, False, False)],
)
def test_a_range_of_very_many_whole_numbers_is_drawn_as_a_range(low: int, high: int, log: bool, fine: bool) -> None:
    parameter = Parameter("x", ("x",), WHERE, low=low, high=high, log=log, whole=True, unit="B")
    assert isinstance(distribution(parameter), optuna.distributions.FloatDistribution) is fine
    assert parameter.written(low + 1.6) == f"{low + 2}B"
    stepped = Parameter("x", ("x",), WHERE, low=low, high=high, step=1, whole=True)
    assert isinstance(distribution(stepped), optuna.distributions.IntDistribution)


@pytest.mark.parametrize("log", [False, True])
def test_tpe_proposes_what_it_proposes_for_the_whole_numbers(log: bool) -> None:
    """The claim that `distribution` rests on: rounded, the points are those of the much slower integer distribution."""
    low, high = 1 << 14, 1 << 20
    kinds = (
        optuna.distributions.IntDistribution(low, high, log=log),
        distribution(Parameter("x", ("x",), WHERE, low=low, high=high, log=log, whole=True)),
    )
    studies = [optuna.create_study() for _ in kinds]
    for number in range(40):
        points = []
        for study, kind in zip(studies, kinds, strict=True):
            study.sampler = optuna.samplers.TPESampler(seed=number)
            trial = study.ask({"x": kind})
            points.append(trial.params["x"])
            study.tell(trial, abs(round(points[0]) - 300_000.0))
        assert points[1] == pytest.approx(points[0], abs=1e-4 * (high - low)), number
