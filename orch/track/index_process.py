"""The process that keeps the index while a driver runs, so that the driver neither imports MLflow nor waits for it.

It reads one request a line from standard input and answers on standard output. When its driver is gone, asked for or
not, it writes the ends the driver could not write and leaves. Start it with `indexer.Indexer`, not by hand.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from orch.track import state
from orch.track.directory import RunDirectory
from orch.track.redact import redact_text
from orch.track.settings import Store, store_of

if TYPE_CHECKING:
    from orch.track.mlflow_index import Index

POLL_S = 5.0
RETRY_S = 60.0
_DRIVER_DIES_IN_S = 3.0


class Keeper:
    """Holds the index open and does what it is asked; a store that cannot be used is an answer, never an end."""

    def __init__(self, root: Path, store: Store) -> None:
        self._root = root
        self._store = store
        self._index: Index | None = None
        self._broken: tuple[float, Exception] | None = None
        self._watched: set[Path] = set()

    def answer(self, request: dict[str, object]) -> dict[str, object]:
        """Do one request; return what to say about it: `{"error": ...}` when the store refused."""
        doing: dict[object, Callable[[dict[str, object]], dict[str, object]]] = {
            "watch": self._watch,
            "sync": self._sync,
            "forget": self._forget,
            "rebuild": self._rebuild,
        }
        try:
            return doing[request.get("do")](request)
        except Exception as error:  # noqa: BLE001 - MLflow, SQL and network layers raise many kinds; none may end a run
            return {"error": _one_line(error)}

    def poll(self) -> None:
        """Bring watched runs up to date; what fails now is said when the driver asks."""
        for path in list(self._watched):
            self.answer({"do": "sync", "run": str(path)})

    def settle(self) -> None:
        """Write the true end of every watched run whose driver is gone, into directory and index."""
        until = time.monotonic() + _DRIVER_DIES_IN_S
        for path in list(self._watched):
            found = state.settle(path)
            while found is not None and found.is_open and found.owner.alive and time.monotonic() < until:
                time.sleep(0.05)  # its pipes close a moment before a dying process is gone
                found = state.settle(path)
            self.answer({"do": "sync", "run": str(path)})

    def _watch(self, request: dict[str, object]) -> dict[str, object]:
        self._watched.add(Path(str(request["run"])))
        return self._sync(request)

    def _sync(self, request: dict[str, object]) -> dict[str, object]:
        path = Path(str(request["run"]))
        run = RunDirectory(path)
        parent = self._open().sync(run)
        found = run.state
        if found is None or not found.is_open:
            self._watched.discard(path)
        return {"parent_run_id": parent}

    def _forget(self, request: dict[str, object]) -> dict[str, object]:
        return {"removed": self._open().forget(str(request["id"]))}

    def _rebuild(self, request: dict[str, object]) -> dict[str, object]:
        self._broken = None
        try:
            stale = self._open().is_stale()
        except Exception:
            if not self._store.local:
                raise
            stale = True
        if stale and self._store.local and self._store.file is not None:
            # MLflow keeps what it opened for the life of the process: the new file needs a new one.
            return {"set_aside": _set_aside(self._store.file)}
        synced, removed = self._open().rebuild(self._root)
        return {"synced": synced, "removed": removed}

    def _open(self) -> Index:
        if self._broken is not None and time.monotonic() - self._broken[0] < RETRY_S:
            raise self._broken[1]
        if self._index is None:
            try:
                from orch.track.mlflow_index import Index  # seconds; requests that come meanwhile wait in the pipe

                self._index = Index(self._store)
            except Exception as error:
                self._broken = (time.monotonic(), error)
                raise
        return self._index


def serve(keeper: Keeper, requests: IO[bytes], answers: IO[str]) -> None:
    """Answer requests until the driver is gone, looking at watched runs in between."""
    parent = os.getppid()
    descriptor = requests.fileno()
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            if selector.select(POLL_S):
                data = os.read(descriptor, 65536)
                if not data:
                    break
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    request = json.loads(line)
                    if request["do"] == "leave":
                        keeper.poll()
                        return
                    answer = keeper.answer(request) | {"ask": request.get("ask")}
                    with suppress(BrokenPipeError):  # a driver that went is no reason to leave things undone
                        answers.write(json.dumps(answer) + "\n")
                        answers.flush()
            elif os.getppid() != parent:
                break  # a child of the driver may have kept our input open
            else:
                keeper.poll()
    keeper.settle()


def main() -> None:
    """Serve one driver: `python -m orch.track.index_process ROOT NICENESS`; the environment names the store."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    root, niceness = Path(sys.argv[1]), int(sys.argv[2])
    os.nice(niceness)
    # Nothing but answers may reach the real standard output: it goes elsewhere before any library is loaded.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(Keeper(root, store_of(root)), sys.stdin.buffer, answers)


def _set_aside(database: Path) -> str:
    """Rename a database that cannot be used any more; the directories hold all that was in it."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    target = database.with_name(f"{database.name}.{stamp}.old")
    database.rename(target)
    for leftover in database.parent.glob(f"{database.name}-*"):  # journals belong to the old file
        leftover.unlink()
    return target.name


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in redact_text(str(error)).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= 300 else text[:300] + "..."


if __name__ == "__main__":
    main()
