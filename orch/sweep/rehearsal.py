"""What Optuna refuses of a sampler or a pruner only when they are asked, asked before anything is made.

Optuna looks at some arguments late: at those of TPE after the first ten trials, at CMA-ES's library and at its objectives
with the second. A study would stand by then, with a run and an index entry. So a study in memory, which nobody keeps, is
played through first with figures that mean nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import optuna

from orch.errors import OrchError
from orch.recipe.space import Parameter
from orch.sweep.samplers import ENUMERATED, Samplers, distribution, pruner_of, refused, suggested

PAST = 10
MOST = 60
_BEGINNING = ("n_startup_trials", "population_size")
"""Arguments that say how many trials a sampler or a pruner lets pass before it begins."""


def rehearse(
    sampler: Mapping[str, Mapping[str, Any]],
    pruner: Mapping[str, Mapping[str, Any]],
    space: Sequence[Parameter],
    directions: Sequence[Literal["minimize", "maximize"]],
) -> None:
    """Ask for a trial after as many as the sampler and the pruner let pass. Raises OrchError (E632) for what they refuse."""
    number = max(_passes(sampler), _passes(pruner))
    study = optuna.create_study(
        directions=list(directions), sampler=optuna.samplers.RandomSampler(seed=0), pruner=pruner_of(pruner)
    )
    distributions = {parameter.path: distribution(parameter) for parameter in space}
    for _ in range(number):
        trial = study.ask()
        suggested(trial, space, distributions)
        if len(directions) == 1:
            trial.report(1.0 + trial.number, 1)
        study.tell(trial, [1.0 + trial.number] * len(directions))
    name = next(iter(sampler))
    if name not in ENUMERATED:  # a grid of our own: Optuna is not asked
        study.sampler = Samplers(sampler, 0, space).at(number)
    family = "samplers"
    try:
        trial = study.ask()
        suggested(trial, space, distributions)
        if len(directions) == 1:
            name, family = next(iter(pruner)), "pruners"
            trial.report(1.0, 1)
            trial.should_prune()
    except OrchError:
        raise
    except Exception as error:
        raise refused(name, family, error) from error


def _passes(named: Mapping[str, Mapping[str, Any]]) -> int:
    arguments = next(iter(named.values()))
    told = [value for key in _BEGINNING if isinstance(value := arguments.get(key), int)]
    return min(MOST, max([PAST, *told]))
