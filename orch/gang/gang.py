"""A gang: the workers of a run, all or none. One call runs a function on every rank, and a failure names its rank."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from orch.errors import LostWorkerError, OrchError, RunError
from orch.gang import system
from orch.gang.local_workers import Died, Look, Workers
from orch.gang.shaping import Shaping
from orch.gang.watch import Watch, waited
from orch.gang.worker import Failure

HANG_AFTER_S = 7.0  # the window; with the time between looks a hang is named within 10 s
_LOOK_EVERY_S = 0.5
# After a first failure: its cause may be reported later than its consequences (a lost connection; Ray takes seconds to
# notice a dead node), and once the cause is known the others may still be on their way to where they wait.
_GRACE_S = 5.0
_SETTLE_S = 0.75
_READY_S = 180.0
_TAIL_LINES = 10

OnEvent = Callable[[int, Any], None]


class Gang(Protocol):
    """The workers of a run. A context manager: leaving it closes the gang.

    `shaping`: by which its links and nodes are changed while it runs; None but for a gang of emulated nodes.
    """

    size: int
    kind: str
    notes: tuple[str, ...]
    shaping: Shaping | None

    def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        per_rank: Sequence[Sequence[Any]] | None = None,
        on_event: OnEvent | None = None,
        hang_after_s: float = HANG_AFTER_S,
    ) -> list[Any]:
        """Run `function(worker, *args, *per_rank[rank])` on every rank; return the results in rank order.

        `function` must be importable by name. `on_event(rank, event)` runs here, in this thread; what ranks tell while
        nobody listens is told to the next who does. RunError: a worker raised; LostWorkerError: one died, hung for
        `hang_after_s`, or could not be reached by the others. Then all workers are ended. An OrchError of a worker is
        raised as is.
        """

    def close(self) -> None:
        """Give the workers back: they stay warm for the next gang of the same kind, or are ended if they failed."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *failure: object) -> None: ...


class WorkersGang:
    """A gang over worker processes, however they are reached.

    `keep`: called once with the workers when the gang is closed in good state. `notes`: what the user may want to know
    about how the workers were made.
    """

    def __init__(
        self,
        workers: Workers,
        kind: str,
        log_dir: Path | None = None,
        keep: Callable[[Workers], None] | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.size = workers.size
        self.kind = kind
        self.notes = notes
        self.shaping: Shaping | None = None
        self._workers: Workers | None = workers
        self._log_dir = log_dir
        self._keep = keep
        self._unheard: list[tuple[int, Any]] = []
        if log_dir is not None:
            with contextlib.suppress(OSError):
                log_dir.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        per_rank: Sequence[Sequence[Any]] | None = None,
        on_event: OnEvent | None = None,
        hang_after_s: float = HANG_AFTER_S,
    ) -> list[Any]:
        """Run `function` on every rank: see Gang."""
        workers = self._workers
        if workers is None:
            raise RunError("the gang is closed", code="E706", hint="make a new one")
        payloads = _payloads(function, args, per_rank, self.size)
        call = _Call(workers, Watch(hang_after_s), self._listener(on_event), self._log_path)
        try:
            for rank, payload in enumerate(payloads):
                workers.post(rank, self._log_path(rank), payload)
            return call.results()
        except BaseException:
            self._end()
            raise

    def _listener(self, on_event: OnEvent | None) -> OnEvent:
        """Return who hears events: `on_event`, after what nobody has heard so far, or the memory of these."""
        if on_event is None:
            return lambda rank, event: self._unheard.append((rank, event))
        unheard, self._unheard = self._unheard, []
        for rank, event in unheard:
            on_event(rank, event)
        return on_event

    def close(self) -> None:
        """Give the workers back: see Gang."""
        workers, self._workers = self._workers, None
        if workers is not None:
            (self._keep or _end)(workers)

    def abort(self) -> None:
        """End the workers at once, from any thread: a call in flight then fails as if they had died."""
        workers = self._workers
        if workers is not None:
            workers.end()

    def _end(self) -> None:
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.end()

    def _log_path(self, rank: int) -> str | None:
        return str(self._log_dir.resolve() / f"rank{rank}.log") if self._log_dir is not None else None


def _end(workers: Workers) -> None:
    workers.end()


def await_ready(workers: Workers, timeout_s: float = _READY_S) -> None:
    """Return once every worker serves and knows where the ranks meet. RunError: one died on the way, or is too slow."""
    call = _Call(workers, None, None, lambda rank: None)
    deadline = time.monotonic() + timeout_s
    answers = call.results(lambda: time.monotonic() > deadline)
    workers.store = answers[0]


class _Call:
    """One call in flight: collects answers until all are there, or a failure is understood."""

    def __init__(
        self,
        workers: Workers,
        watch: Watch | None,
        on_event: OnEvent | None,
        log_path: Callable[[int], str | None],
    ) -> None:
        self._workers = workers
        self._watch = watch
        self._on_event = on_event
        self._log_path = log_path
        self._pending = set(range(workers.size))
        self._killed_before = system.killed_for_memory()
        self._log_starts = [_size(log_path(rank)) for rank in range(workers.size)]
        self._results: dict[int, Any] = {}
        self._failures: dict[int, Failure] = {}
        self._deaths: dict[int, Died] = {}

    def results(self, too_late: Callable[[], bool] = lambda: False) -> list[Any]:
        size = self._workers.size
        next_look_s, give_up_s = 0.0, float("inf")
        while self._pending:
            for rank, message in self._workers.wait(0.1 if self._failed() else _LOOK_EVERY_S):
                self._take(rank, message)
            now_s = time.monotonic()
            if self._failed():
                give_up_s = min(give_up_s, now_s + (_SETTLE_S if self._cause_known() else _GRACE_S))
                if now_s >= give_up_s or self._consequences_known():
                    break
            elif self._watch is not None and now_s >= next_look_s:
                next_look_s = now_s + _LOOK_EVERY_S
                hang = self._watch.hung(now_s, self._workers.look(), self._pending)
                if hang is not None:
                    error = self._with_tail(RunError(hang.text, code="E703", hint=self._hint(hang.rank)), hang.rank)
                    raise LostWorkerError.of(error, [hang.rank])
            if too_late():
                ranks = ", ".join(map(str, sorted(self._pending)))
                raise RunError(f"workers did not become ready in time (ranks {ranks} of {size})", code="E705")
        if self._failed():
            raise self._error()
        return [self._results[rank] for rank in range(size)]

    def _take(self, rank: int, message: bytes | Died) -> None:
        if isinstance(message, Died):
            self._deaths[rank] = message
            self._pending.discard(rank)
            return
        kind, value = pickle.loads(message)
        if kind == "log":
            path = self._log_path(rank)
            if path is not None:
                with contextlib.suppress(OSError), open(path, "ab") as file:  # a full disk ends no run for its log
                    file.write(value)
            return
        if kind == "event":
            if self._on_event is not None:
                self._on_event(rank, value)
            return
        self._pending.discard(rank)
        if kind == "failure":
            self._failures[rank] = value
        else:
            self._results[rank] = value

    def _failed(self) -> bool:
        return bool(self._deaths or self._failures)

    def _cause_known(self) -> bool:
        return bool(self._deaths) or any(not failure.lost_peer for failure in self._failures.values())

    def _consequences_known(self) -> bool:
        """Tell whether the cause is known and every other rank has come to wait for the failed one, or failed too."""
        if not self._cause_known():
            return False
        looks = self._workers.look()
        return all(looks[rank].place.waiting for rank in self._pending)

    def _error(self) -> OrchError:
        looks = self._workers.look()
        lost = {rank for rank, failure in self._failures.items() if failure.lost_peer}
        waiting = {rank for rank in self._pending if looks[rank].place.waiting}
        if self._deaths:
            return self._death(looks, sorted((waiting | lost) - set(self._deaths)))
        own = sorted(set(self._failures) - lost) or sorted(lost)
        failure = self._failures[own[0]]
        error = failure.error or self._exception(own[0], failure, looks, sorted((waiting | lost) - {own[0]}))
        # Connections were lost and nobody died: the network between the ranks was.
        return LostWorkerError.of(error, own) if own[0] in lost and isinstance(error, RunError) else error

    def _death(self, looks: list[Look], waiters: list[int]) -> LostWorkerError:
        rank = min(self._deaths)
        place = str(looks[rank].place)
        how = f"{f' in {place}' if place else ''} ({self._deaths[rank]})"
        text = f"rank {rank} of {len(looks)} died{how}{waited(waiters, 'waited')}"
        if self._deaths[rank].status == -signal.SIGKILL and system.killed_for_memory() > self._killed_before:
            text += "; the kernel was out of memory and killed for it"
        error = self._with_tail(RunError(text, code="E701", hint=self._hint(rank)), rank)
        return LostWorkerError.of(error, sorted(self._deaths))

    def _exception(self, rank: int, failure: Failure, looks: list[Look], waiters: list[int]) -> RunError:
        place = str(looks[rank].place)
        what = f": {failure.text}" if failure.text else ""
        where = f" ({_shown(failure.place)})" if failure.place else ""
        text = f"rank {rank} of {len(looks)} raised {failure.kind}{f' in {place}' if place else ''}{what}{where}"
        return self._with_tail(RunError(text + waited(waiters, "waited"), code="E702", hint=self._hint(rank)), rank)

    def _hint(self, rank: int) -> str:
        path = self._log_path(rank)
        return f"log: {_shown(path)}" if path is not None else ""

    def _with_tail(self, error: RunError, rank: int) -> RunError:
        path = self._log_path(rank)
        if path is not None and (lines := _tail(path, self._log_starts[rank])):
            error.add_note("\n".join([f"last lines of {_shown(path)}:", *lines]))
        return error


def _payloads(
    function: Callable[..., Any], args: Sequence[Any], per_rank: Sequence[Sequence[Any]] | None, size: int
) -> list[bytes]:
    if function.__module__ == "__main__":
        raise RunError(
            f"workers cannot import '{function.__qualname__}' from __main__", code="E707", hint="move it into a module"
        )
    if per_rank is not None and len(per_rank) != size:
        raise RunError(f"per_rank has {len(per_rank)} entries for {size} ranks", code="E707")
    try:
        if per_rank is None:
            return [pickle.dumps((function, tuple(args)))] * size
        return [pickle.dumps((function, (*args, *per_rank[rank]))) for rank in range(size)]
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise RunError(f"a call cannot be sent to the workers: {error}", code="E707") from error


def _size(path: str | None) -> int:
    try:
        return os.stat(path).st_size if path is not None else 0
    except OSError:
        return 0


def _tail(path: str, start: int) -> list[str]:
    """Return the last lines that `path` gained after byte `start`."""
    try:
        with open(path, "rb") as file:
            file.seek(max(start, os.stat(path).st_size - (1 << 16)))
            return file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
    except OSError:
        return []


def _shown(path: str) -> str:
    """Return `path` relative to the working directory where that is shorter."""
    try:
        relative = os.path.relpath(path)
    except ValueError:
        return path
    return relative if len(relative) < len(path) and not relative.startswith("..") else path
