"""Domination ends a trial of several objectives where the median rule would end one of one."""

from __future__ import annotations

import pytest

from orch.errors import OrchError
from orch.sweep.metrics import Objective, Sought
from orch.sweep.pruning import Pruning, refuse_pruner
from orch.sweep.study import Ticket

SOUGHT = Sought((Objective("step_time", False), Objective("val_accuracy", True)))


class Courses:
    """Stands for a study whose earlier trials took these courses."""

    def __init__(self, *courses: dict[int, list[float]]) -> None:
        self.earlier = list(courses)
        self.told: list[tuple[int, list[float]]] = []

    def report_course(self, ticket, step, values) -> None:
        self.told.append((step, list(values)))

    def courses(self, but):
        return self.earlier


TICKET = Ticket(9, {}, None)  # type: ignore[arg-type]
THREE = [{1: [1.0, 0.9]}, {1: [2.0, 0.8]}, {1: [9.0, 0.1]}]


@pytest.mark.parametrize(
    ("values", "ended"),
    [
        ([3.0, 0.5], True),  # two of three are faster and better
        ([0.5, 0.5], False),  # nothing is faster
        ([3.0, 0.95], False),  # nothing is better
        ([1.5, 0.85], False),  # one of three dominates it
    ],
)
def test_what_most_dominate_ends(values, ended: bool) -> None:
    pruning = Pruning(Courses(*THREE), SOUGHT, {"MedianPruner": {"n_startup_trials": 3}})  # type: ignore[arg-type]
    assert pruning.ends(TICKET, 1, values) is ended


def test_not_before_enough_have_come_as_far() -> None:
    store = Courses(*THREE)
    pruning = Pruning(store, SOUGHT, {"MedianPruner": {"n_startup_trials": 4}})  # type: ignore[arg-type]
    assert not pruning.ends(TICKET, 1, [10.0, 0.0])
    assert not Pruning(store, SOUGHT, {"MedianPruner": {"n_startup_trials": 1}}).ends(TICKET, 2, [10.0, 0.0])  # type: ignore[arg-type]
    warm = {"MedianPruner": {"n_startup_trials": 1, "n_warmup_steps": 1}}
    assert not Pruning(store, SOUGHT, warm).ends(TICKET, 1, [10.0, 0.0])  # type: ignore[arg-type]
    assert store.told == [(1, [10.0, 0.0]), (2, [10.0, 0.0]), (1, [10.0, 0.0])]


def test_a_percentile_says_how_many_must_dominate() -> None:
    strict = {"PercentilePruner": {"percentile": 90.0, "n_startup_trials": 1}}
    assert not Pruning(Courses(*THREE), SOUGHT, strict).ends(TICKET, 1, [3.0, 0.5])  # type: ignore[arg-type]
    assert Pruning(Courses(*THREE), SOUGHT, strict).ends(TICKET, 1, [10.0, 0.0])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("metrics", "pruner", "line"),
    [
        (["memory"], {"MedianPruner": {}}, "MedianPruner cannot judge memory before the end of a trial; "),
        (["step_time", "memory"], {"MedianPruner": {}}, "MedianPruner cannot judge memory"),
        (["loss", "step_time"], {"HyperbandPruner": {}}, "HyperbandPruner judges one objective; the sweep has 2; "),
        (["loss", "step_time"], {"MedianPruner": {"interval_steps": 2}}, "MedianPruner has no interval_steps where"),
    ],
)
def test_a_pruner_that_cannot_judge_is_refused(metrics, pruner, line: str) -> None:
    with pytest.raises(OrchError, match=rf"{line}.*\[E632\]"):
        refuse_pruner(Sought(tuple(Objective(name, False) for name in metrics)), pruner)
