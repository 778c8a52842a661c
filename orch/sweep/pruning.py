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


class Pruning:
    """Ends trials of one study early. Raises OrchError (E632) for a pruner that knows one objective only."""

    def __init__(self, store: Store, sought: Sought, pruner: Mapping[str, Mapping[str, Any]]) -> None:
        self._store = store
        self._sought = sought
        self._name, arguments = next(iter(pruner.items()))
        self._several = len(sought.objectives) > 1
        if self._several and self._name not in (*DOMINATION, "NopPruner"):
            message = f"{self._name} judges one objective; the sweep has {len(sought.objectives)}"
            raise OrchError(message, code="E632", hint=f"with several, use {' or '.join(DOMINATION)}")
        self._least = int(arguments.get("n_startup_trials", 5))
        self._first = int(arguments.get("n_warmup_steps", 0))
        self._share = float(arguments.get("percentile", 50.0)) / 100.0

    def ends(self, ticket: Ticket, step: int, values: Sequence[float]) -> bool:
        """Keep what a trial has come to after `step` blocks; return whether it is to end there."""
        if self._name == "NopPruner":
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
