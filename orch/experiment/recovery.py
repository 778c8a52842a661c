"""Go on with other workers when some are lost: the gang is made anew, and every training goes on where it stood."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING

from orch.errors import LostWorkerError, OrchError, RunError
from orch.experiment.outcome import Outcome
from orch.experiment.show import Show
from orch.gang import Gang
from orch.recipe import Recipe
from orch.units import format_count

if TYPE_CHECKING:
    from orch.experiment.execute import Execution

Smaller = tuple[Recipe, Callable[[], Gang]]
# What says that there are too few nodes: never enough, or not within a minute.
_TOO_FEW = ("E712", "E722")


class Recovery:
    """Runs an execution through losses of workers; `gangs` closes what is made meanwhile.

    A loss counts against `retries` until some block has been finished since: a run that gets on may lose any number of
    workers, one that dies in the same place again and again ends with the last loss.
    """

    def __init__(
        self, make: Callable[[], Gang], gangs: ExitStack, retries: int, show: Show, fewer: Sequence[Smaller] = ()
    ) -> None:
        self._make = make
        self._fewer = list(fewer)
        self._gangs = gangs
        self._retries = self._left = retries
        self._show = show
        self._done = 0

    def through(self, execution: Execution) -> Outcome:
        """Return what the run found out. LostWorkerError: one loss too many; other errors as they come."""
        while True:
            try:
                return execution.all()
            except LostWorkerError as error:
                self._replace(execution, error)

    def _replace(self, execution: Execution, error: RunError) -> None:
        begin = time.monotonic()
        if execution.steps_done > self._done:
            self._done, self._left = execution.steps_done, self._retries
        while True:
            if self._left == 0:
                if self._retries:
                    error.add_note(f"given up: {self._retries + 1} losses without a block finished between them")
                raise error
            self._left -= 1
            self._show.end()
            self._show.stage(f"{error}; making the gang anew")
            execution.mend()
            try:
                self._remade(execution)
                break
            except RunError as failed:  # a node may need a moment to be seen as gone
                error = failed
        execution.note(f"went on with new workers after a loss ({time.monotonic() - begin:.1f} s): {error.message}")

    def _remade(self, execution: Execution) -> None:
        """Have `execution` move to a new gang: as large, or as large as can be had where fewer nodes are allowed."""
        shrunk: Recipe | None = None
        while True:
            try:
                gang = self._gangs.enter_context(self._make())
                break
            except OrchError as error:
                if error.code not in _TOO_FEW or not self._fewer or execution.outcome is None:
                    raise
                shrunk, self._make = self._fewer.pop(0)
                self._show.stage(f"{error.message}; trying {format_count(shrunk.cluster.nodes, 'node')}")
        if shrunk is None:
            execution.move_to(gang)
        else:
            execution.shrink_to(shrunk, gang)


def smaller(recipe: Recipe, open_on: Callable[[Recipe], Gang]) -> list[Smaller]:
    """Return the clusters that a run of `recipe` may go on with, the largest first, with what makes each one's gang."""
    least, found = recipe.spec.recover.min_nodes, list[Smaller]()
    for nodes in range(recipe.cluster.nodes - 1, (least or recipe.cluster.nodes) - 1, -1):
        with suppress(OrchError):  # the global batch cannot be shared so
            one = recipe.on_nodes(nodes)
            found.append((one, partial(open_on, one)))
    return found
