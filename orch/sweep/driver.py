"""The loop of a sweep: a free slot asks for a trial, runs it, tells what came of it, and asks again.

What ends a trial decides what is kept of it: what cannot be (out of memory, not a number) is infeasible, a lost node
is tried again, and the same other error three times stops the study.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from orch.errors import OrchError, RunError
from orch.sweep.cells import CellStore
from orch.sweep.metrics import InfeasibleError, checked
from orch.sweep.settings import Settings, Trial, cell_key
from orch.sweep.study import COMPLETE, FAILED, INFEASIBLE, PRUNED, About, Record, Store, Ticket

SAME_ERRORS = 3
LOST = ("E701", "E703", "E705")
"""Codes that say a worker or its node was lost: the trial is not to blame."""
TAKEN = "E722"
"""Says that no machine was free for the gang: where other trials hold them, there is room for fewer at a time."""
_MEMORY = re.compile(
    r"out of memory|OutOfMemory|MemoryError|can't allocate memory|Cannot allocate memory", re.IGNORECASE
)


class NoRoomError(Exception):
    """A trial for which no machine was free while others ran: it waits, and one slot fewer runs from now on."""


class PrunedError(Exception):
    """A trial that was ended early."""


@dataclass(frozen=True)
class Found:
    """What running a trial gave: metrics, where it is kept, and whether it shared its machine."""

    values: Mapping[str, float]
    run_dir: str | None = None
    contended: bool = False


class Evaluate(Protocol):
    """Runs one trial. Raises InfeasibleError, PrunedError, or the OrchError it failed with."""

    def __call__(self, ticket: Ticket, trial: Trial) -> Found: ...


class Watcher(Protocol):
    """Is told of every trial that began (None) or ended, and how many run now; from any thread, one at a time."""

    def __call__(self, record: Record | None, running: int) -> None: ...


@dataclass
class Cells:
    """The cells that are known already, by key; `surroundings` is the part of a key that no recipe holds, `reuse` false runs
    equal cells again.
    """

    mode: str
    surroundings: Mapping[str, Any]
    known: dict[str, Record] = field(default_factory=dict)
    store: CellStore | None = None
    reuse: bool = True

    def key(self, trial: Trial) -> str:
        """Return the key of a trial's cell."""
        return cell_key(trial.recipe, trial.stack, self.mode, self.surroundings)


class Driver:
    """Runs trials of a study until it has `total`, in `parallel` slots."""

    def __init__(self, store: Store, settings: Settings, cells: Cells, evaluate: Evaluate, watch: Watcher) -> None:
        self._store = store
        self._settings = settings
        self._cells = cells
        self._evaluate = evaluate
        self._watch = watch
        self._lock = threading.Lock()
        self._errors: Counter[str] = Counter()
        self._aborted = False
        self._running = 0
        self.stopped: str = ""
        self.slots = 1
        self.last_error: OrchError | None = None

    def run(
        self,
        total: int | None,
        *,
        parallel: int = 1,
        retries: int = 2,
        until: float | None = None,
        new: bool = True,
        abort: Callable[[], None] = lambda: None,
    ) -> None:
        """Run trials; `until` is when to begin no more (time.monotonic). Raises what is no trial's own fault.

        `abort` ends what the other slots are running when one of them, or the user, ends the sweep.
        """

        def slot() -> None:
            while not self.stopped and not self._late(until):
                ticket = self._store.ask(total, new=new)
                if ticket is None:
                    return
                try:
                    self._one(ticket, retries)
                except NoRoomError:
                    return

        self.slots = parallel
        if parallel == 1:
            slot()
            return
        with ThreadPoolExecutor(parallel, thread_name_prefix="orch-slot") as slots:
            running: set[Future[None]] = {slots.submit(slot) for _ in range(parallel)}
            try:
                done, _ = wait(running, return_when=FIRST_EXCEPTION)
                failure = next((error for future in done if (error := future.exception()) is not None), None)
                if failure is not None:
                    raise failure
            except BaseException as error:
                self.stop(str(error) or type(error).__name__)
                self._aborted = True
                abort()
                raise

    def stop(self, why: str) -> None:
        """Begin no more trials."""
        self.stopped = self.stopped or why

    def _late(self, until: float | None) -> bool:
        if until is not None and time.monotonic() >= until:
            self.stop("deadline")
        return bool(self.stopped)

    def _one(self, ticket: Ticket, retries: int) -> None:
        begin = time.monotonic()
        with self._lock:
            self._running += 1
            self._watch(None, self._running)
        try:
            about = self._outcome(ticket, retries)
        except BaseException:
            # Interrupted, or the driver's own fault: the trial keeps its number and waits for the next invocation.
            self._store.release(ticket)
            raise
        finally:
            with self._lock:
                self._running -= 1
        about = replace(
            about, mode=self._cells.mode, seconds=time.monotonic() - begin, replaces=ticket.replaces,
            attempts=ticket.attempts,
        )  # fmt: skip
        self._store.tell(ticket, about)
        record = Record(ticket.number, about.state, ticket.chosen, about)
        with self._lock:
            if about.state == COMPLETE and about.cell and about.same_as is None:
                self._cells.known.setdefault(about.cell, record)
            self._watch(record, self._running)

    def _outcome(self, ticket: Ticket, retries: int) -> About:
        cell = ""
        try:
            trial = self._settings.trial(ticket.chosen)
        except OrchError as error:  # settings that exclude one another: no trial of this cell can be
            return About(INFEASIBLE, reason=str(error))
        try:
            cell = self._cells.key(trial)
            if (known := self._known(cell, ticket)) is not None:
                return known
            found = self._tried(ticket, trial, retries)
            about = About(COMPLETE, dict(checked(found.values)), cell, run_dir=found.run_dir, contended=found.contended)
            if self._cells.store is not None:
                self._cells.store.keep(cell, about.values, about.run_dir)
            return about
        except InfeasibleError as error:
            return About(INFEASIBLE, cell=cell, reason=str(error))
        except PrunedError as error:
            return About(PRUNED, cell=cell, reason=str(error))
        except OrchError as error:
            if self._aborted:
                raise
            return self._faulty(error, cell)

    def _faulty(self, error: OrchError, cell: str) -> About:
        if _MEMORY.search(str(error)):
            return About(INFEASIBLE, cell=cell, reason=f"out of memory: {error}")
        if error.exit_code != 2:
            self._count(error)
            return About(FAILED, cell=cell, reason=str(error))
        # The user's input: these settings cannot be. Where no trial could be yet, it is not the settings.
        if not self._cells.known:
            self._count(error)
        return About(INFEASIBLE, cell=cell, reason=str(error))

    def _known(self, cell: str, ticket: Ticket) -> About | None:
        """Return what an equal cell gave, if one has been run and is not to be run again."""
        if not self._cells.reuse:
            return None
        with self._lock:
            earlier = self._cells.known.get(cell)
        if earlier is not None:
            about = earlier.about
            return replace(about, same_as=earlier.number, cell=cell)
        kept = None if self._cells.store is None else self._cells.store.find(cell)
        if kept is None or not set(self._store.plan.sought.metrics) <= set(kept["values"]):
            return None
        values = {name: kept["values"][name] for name in self._store.plan.sought.metrics}
        return About(COMPLETE, values, cell, run_dir=kept.get("run_dir"), reason="measured by an earlier sweep")

    def _tried(self, ticket: Ticket, trial: Trial, retries: int) -> Found:
        """Run a trial, again where a worker was lost."""
        while True:
            try:
                return self._evaluate(ticket, trial)
            except RunError as error:
                if error.code == TAKEN and self._closes():
                    raise NoRoomError from error
                if self._aborted or error.code not in LOST or ticket.attempts > retries:
                    raise
                ticket.attempts += 1

    def _closes(self) -> bool:
        """Close the slot that asks, unless it is the last one."""
        with self._lock:
            if self.slots == 1:
                return False
            self.slots -= 1
            return True

    def _count(self, error: OrchError) -> None:
        """Count errors that are alike; the third stops the study."""
        with self._lock:
            self.last_error = error
            alike = re.sub(r"\d+", "0", f"{error.code} {error.message}")
            self._errors[alike] += 1
            if self._errors[alike] >= SAME_ERRORS:
                self.stop(f"the same error came {SAME_ERRORS} times: {error}")
