"""Changing runs that are already there: stop, remove, and mend what a death or a lost index left behind."""

from __future__ import annotations

import os
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orch.errors import OrchError
from orch.track import directory, indexer, state
from orch.track.directory import RunDirectory
from orch.track.indexer import Indexer, IndexUnavailableError
from orch.track.redact import redact_text
from orch.track.settings import Store
from orch.track.state import State

STOP_TIMEOUT_S = 30.0
_INDEX_TIMEOUT_S = 60.0
_REBUILD_TIMEOUT_S = 3600.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Mended:
    """What `fix` did: runs closed, entries synced and removed, a ruined store set aside; `error` when it has no index."""

    closed: tuple[str, ...]
    index: str
    synced: int = 0
    removed: int = 0
    set_aside: str | None = None
    error: str | None = None


def stop(run: RunDirectory, timeout_s: float = STOP_TIMEOUT_S, *, force: bool = False) -> State:
    """Ask the driver of a run to stop, wait until it is gone, and return the true state.

    Raises OrchError when the driver runs on another host, or has not stopped in time; with `force` it is killed then.
    """
    found = state.settle(run.path)
    if found is None:
        raise OrchError(f"run {run.id} has no readable state.json", code="E805", hint=f"look into {run.path}")
    if not found.is_open:
        return found
    if not found.owner.is_local:
        raise OrchError(f"run {run.id} runs on {found.owner.host}", code="E806", hint="stop it there")
    _signal(found, signal.SIGTERM)
    if not _gone(found, timeout_s):
        if not force:
            raise OrchError(
                f"run {run.id} (pid {found.owner.pid}) has not stopped in {timeout_s:g} s",
                code="E807",
                hint="wait, or kill it with --force",
            )
        _signal(found, signal.SIGKILL)
        _gone(found, timeout_s)
    return state.settle(run.path) or found


def remove(runs: Sequence[RunDirectory], store: Store, note: Callable[[str], None], *, force: bool = False) -> None:
    """Remove runs and their entries in the index. If one is not over, none is removed, unless `force` stops it.

    Raises OrchError for a run that is not over.
    """
    open_ones = [(run, found) for run in runs if (found := state.settle(run.path)) is not None and found.is_open]
    for run, found in open_ones:
        if not force:
            raise OrchError(f"run {run.id} is {found.status}", code="E808", hint="stop it first, or use --force")
        if found.owner.is_local:
            stop(run, force=True)
    indexed = [run for run in runs if (run.path / "index.json").exists()]
    for run in runs:
        # Gone in one step, so that nobody meets half a run.
        doomed = run.path.with_name(f".removed-{run.id}")
        run.path.rename(doomed)
        shutil.rmtree(doomed)
        with suppress(OSError):
            run.path.parent.rmdir()  # only when it was the recipe's last run
    if indexed:
        _with_index(store, note, lambda index: [index.forget(run.id, _INDEX_TIMEOUT_S) for run in indexed])


def settle_all(root: Path, store: Store, note: Callable[[str], None]) -> list[RunDirectory]:
    """Write the true end of every run whose driver is gone, into directory and index; return these runs."""
    closed = _settle(directory.find_all(root))
    indexed = [run for run in closed if (run.path / "index.json").exists()]
    if indexed:
        _with_index(store, note, lambda index: [index.sync(run.path, _INDEX_TIMEOUT_S) for run in indexed])
    return closed


def fix(root: Path, store: Store) -> Mended:
    """Write true ends and make the index from the directories; a store that refuses is part of the answer."""
    closed = tuple(run.id for run in _settle(directory.find_all(root)))
    for leftover in root.glob("*/.removed-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    shown = redact_text(store.uri)
    if not indexer.available():
        return Mended(closed, shown, error="MLflow is not installed")
    try:
        index = Indexer(root, store)
        try:
            answer = index.rebuild(_REBUILD_TIMEOUT_S)
        finally:
            index.close()
    except IndexUnavailableError as error:
        return Mended(closed, shown, error=str(error))
    aside = answer["set_aside"]
    counts = int(str(answer["synced"])), int(str(answer["removed"]))
    return Mended(closed, shown, *counts, set_aside=None if aside is None else str(aside))


def _settle(runs: Iterable[RunDirectory]) -> list[RunDirectory]:
    closed = []
    for run in runs:
        before = run.state
        if before is not None and before.is_orphan and state.settle(run.path) is not None:
            closed.append(run)
    return closed


def _with_index(store: Store, note: Callable[[str], None], action: Callable[[Indexer], object]) -> None:
    """Do something with the index if there is one; one that refuses is a remark, for the directories are right."""
    if not indexer.available():
        return
    try:
        index = Indexer(store.index_dir.parent, store)
        try:
            action(index)
        finally:
            index.close()
    except IndexUnavailableError as error:
        note(f"the index {redact_text(store.uri)} cannot be used ({error}); `orch runs fix` makes it anew")


def _signal(found: State, number: int) -> None:
    # Between the look and the signal the pid could pass to another process: look again at the last moment.
    if found.owner.alive:
        with suppress(ProcessLookupError):
            os.kill(found.owner.pid, number)


def _gone(found: State, timeout_s: float) -> bool:
    """Wait until the owner is gone, at most so long; return whether it is."""
    until = time.monotonic() + timeout_s
    if hasattr(os, "pidfd_open"):
        with suppress(OSError):
            handle = os.pidfd_open(found.owner.pid)
            try:
                select.select([handle], [], [], timeout_s if found.owner.alive else 0)
            finally:
                os.close(handle)
    while found.owner.alive and time.monotonic() < until:
        time.sleep(_POLL_S)
    return not found.owner.alive
