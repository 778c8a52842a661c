"""Go on with other workers when some are lost: the gang is made anew, and every training goes on where it stood."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from orch.errors import LostWorkerError, RunError
from orch.experiment.outcome import Outcome
from orch.experiment.show import Show
from orch.gang import Gang

if TYPE_CHECKING:
    from orch.experiment.execute import Execution


class Recovery:
    """Runs an execution through losses of workers; `gangs` closes what is made meanwhile.

    A loss counts against `retries` until some block has been finished since: a run that gets on may lose any number of
    workers, one that dies in the same place again and again ends with the last loss.
    """

    def __init__(self, make: Callable[[], Gang], gangs: ExitStack, retries: int, show: Show) -> None:
        self._make = make
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
                gang = self._gangs.enter_context(self._make())
                break
            except RunError as failed:  # a node may need a moment to be seen as gone
                error = failed
        execution.move_to(gang)
        execution.note(f"went on with new workers after a loss ({time.monotonic() - begin:.1f} s): {error.message}")
