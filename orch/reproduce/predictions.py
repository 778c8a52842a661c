"""How well a whole table is predicted: the errors of what no input was fitted on, and whether the best stack is found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orch.reproduce.evaluate import CellDraws
from orch.reproduce.judge import Judge
from orch.reproduce.metrics import step_published

TIE = 0.02
"""Published times that differ by less are a tie: choosing either is right."""


@dataclass(frozen=True)
class Prediction:
    """One table, predicted: `errors` are |ours/published - 1| of every number that no input was fitted on.

    `best` and `best_of_all` count the cells in which the stack we call fastest is the fastest published one, within
    `TIE`: among the stacks simulated, and among these and those of the table that nobody can run here.
    """

    experiments: tuple[str, ...]
    errors: tuple[float, ...]
    fitted: int
    best: int
    best_of_all: int
    cells: int

    @property
    def median_error(self) -> float:
        """Median of the errors."""
        return float(np.median(self.errors)) if self.errors else float("nan")

    def __str__(self) -> str:
        shown = f"{len(self.errors)} published times that no input was fitted on: median error {self.median_error:.1%}"
        worst = f", 90 % of them within {np.percentile(self.errors, 90):.1%}" if self.errors else ""
        return (
            f"{shown}{worst}; {self.fitted} more were fitted. Fastest stack right (within {TIE:.0%}) in {self.best} of "
            f"{self.cells} cells among those simulated, in {self.best_of_all} among all published"
        )


def predict_tables(judge: Judge) -> dict[str, Prediction]:
    """Return how well each published table of times is predicted, over the experiments that use it."""
    paper = judge.paper
    by_table: dict[str, list[str]] = {}
    for name, experiment in paper.spec.experiments.items():
        if experiment.cells is not None and judge.uses(name):
            by_table.setdefault(experiment.cells.table, []).append(name)
    found = {table: _prediction(judge, table, names) for table, names in by_table.items()}
    return {table: prediction for table, prediction in found.items() if prediction.cells}


def _prediction(judge: Judge, table: str, experiments: list[str]) -> Prediction:
    errors: list[float] = []
    fitted = best = best_of_all = cells = 0
    for experiment in experiments:
        by_cell: dict[str, tuple[CellDraws, dict[str, float]]] = {}
        for draws, stack, published, was_fitted in judge.predictions(experiment):
            ours = float(np.median(draws.stacks[stack].step_s))
            by_cell.setdefault(draws.cell.name, (draws, {}))[1][stack] = published
            fitted += was_fitted
            errors += [] if was_fitted else [abs(ours / published - 1)]
        for draws, times in by_cell.values():
            chosen = min(times, key=lambda stack: float(np.median(draws.stacks[stack].step_s)))
            others = (step_published(judge.paper, table, draws, name) for name in judge.paper.spec.evidence[table].also)
            fastest = min([*times.values(), *(value for value in others if value is not None)])
            cells += 1
            best += times[chosen] <= (1 + TIE) * min(times.values())
            best_of_all += times[chosen] <= (1 + TIE) * fastest
    return Prediction(tuple(experiments), tuple(errors), fitted, best, best_of_all, cells)
