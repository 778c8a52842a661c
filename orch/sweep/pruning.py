"""Whether a trial is ended early: by Optuna's pruner for one objective, by domination for several.

Optuna refuses to report several objectives. The rule here says the same as its median rule does for one: a trial ends
where more than `percentile` per cent of the earlier trials that came as far dominate it there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orch.errors import OrchError
from orch.sweep.metrics import Sought
from orch.sweep.study import Store, Ticket

DOMINATION = ("MedianPruner", "PercentilePruner")
COURSE = ("step_time", "throughput", "loss", "val_loss", "val_accuracy")
"""Metrics that are known after every block; of the others only the end tells."""
_NONE = "NopPruner"
_HEEDED = ("percentile", "n_startup_trials", "n_warmup_steps")


def refuse_pruner(sought: Sought, pruner: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a pruner where an objective is known at the end only, and what it cannot do for several. Raises OrchError
    (E632).
    """
    name, arguments = next(iter(pruner.items()))
    if name == _NONE:
        return
    unknown = [objective.metric for objective in sought.objectives if objective.metric not in COURSE]
    if unknown:
        message = f"{name} cannot judge {unknown[0]} before the end of a trial"
        raise OrchError(message, code="E632", hint=f"seek one of {', '.join(COURSE)}, or leave the pruner out")
    if len(sought.objectives) == 1:
        return
    if name not in DOMINATION:
        message = f"{name} judges one objective; the sweep has {len(sought.objectives)}"
        raise OrchError(message, code="E632", hint=f"with several, use {' or '.join(DOMINATION)}")
    if odd := [argument for argument in arguments if argument not in _HEEDED]:
        message = f"{name} has no {odd[0]} where there are several objectives"
        raise OrchError(message, code="E632", hint=f"its arguments then: {', '.join(_HEEDED)}")


class Pruning:
    """Ends trials of one study early, by a pruner that `refuse_pruner` has let pass."""

    def __init__(self, store: Store, sought: Sought, pruner: Mapping[str, Mapping[str, Any]]) -> None:
        self._store = store
        self._sought = sought
        self._name, arguments = next(iter(pruner.items()))
        self._several = len(sought.objectives) > 1
        self._least = int(arguments.get("n_startup_trials", 5))
        self._first = int(arguments.get("n_warmup_steps", 0))
        self._share = float(arguments.get("percentile", 50.0)) / 100.0

    def ends(self, ticket: Ticket, step: int, values: Sequence[float]) -> bool:
        """Keep what a trial has come to after `step` blocks; return whether it is to end there."""
        if self._name == _NONE:
            return False
        if not self._several:
            return self._store.report(ticket, values[0], step)
        self._store.report_course(ticket, step, values)
        if step <= self._first:
            return False
        others = [course[step] for course in self._store.courses(ticket.number) if step in course]
        if len(others) < max(1, self._least):
            return False
        beaten = sum(self._sought.dominates(other, values) for other in others)
        return beaten > self._share * len(others)
