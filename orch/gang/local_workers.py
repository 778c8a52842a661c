"""The workers of one machine: forked, spoken to through sockets, seen through shared memory and /proc."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Protocol

from orch.gang import system, worker
from orch.gang.fork_server import ForkServer
from orch.gang.progress import SIZE_BYTES, Place, Progress, new_file

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Died:
    """A worker process ended: negative status is the signal, otherwise the exit code. `why` if its host is gone."""

    status: int
    why: str = ""

    def __str__(self) -> str:
        return self.why or system.describe_exit(self.status)


@dataclass(frozen=True, slots=True)
class Look:
    """What can be seen of a worker from outside. `cpu_s` is None where the system does not say."""

    place: Place
    cpu_s: float | None
    stopped: bool


class Workers(Protocol):
    """Worker processes, wherever they are: the gang above neither knows nor asks how they are reached."""

    size: int
    store: tuple[str, int] | None  # where the ranks meet: rank 0's address for process groups

    def post(self, rank: int, log_path: str | None, payload: bytes) -> None:
        """Hand a call to a rank, whose output goes to `log_path`; one that has died is reported by `wait`."""

    def wait(self, timeout_s: float) -> list[tuple[int, bytes | Died]]:
        """Return what the ranks said since the last time, in order; empty after `timeout_s`. A rank dies once."""

    def look(self) -> list[Look]:
        """Return what can be seen of every rank now, the dead ones' last place included."""

    def end(self) -> None:
        """End every worker, whatever it does; returns when none is left."""


class LocalWorkers:
    """Workers forked from `server`, one for each spec. They share memory with this process, never files."""

    def __init__(self, server: ForkServer, specs: Sequence[worker.Spec]) -> None:
        self.size = len(specs)
        self.store: tuple[str, int] | None = None
        self._server = server
        self._connections: list[Connection | None] = []
        self._progress: list[Progress] = []
        self._pids: list[int] = []
        self._spools: list[int] = []  # unnamed files, so that nothing is left behind
        self._shipped: list[int] = []
        self._said_dead: set[int] = set()
        for spec in specs:
            self._start(spec)

    @property
    def pids(self) -> list[int]:
        return list(self._pids)

    def post(self, rank: int, log_path: str | worker.Spool | None, payload: bytes) -> None:
        connection = self._connections[rank]
        if connection is not None:
            with contextlib.suppress(OSError):  # its death is reported by wait, with the exit code
                connection.send_bytes(pickle.dumps((log_path, self.store, payload)))

    def wait(self, timeout_s: float) -> list[tuple[int, bytes | Died]]:
        ranks = {c: rank for rank, c in enumerate(self._connections) if c is not None}
        said: list[tuple[int, bytes | Died]] = []
        server = self._server.connection
        for ready in wait([*ranks, *([] if server.closed else [server])], timeout_s):
            if ready in ranks:
                said += self._read(ranks[ready])
        return said + self._deaths()

    def look(self) -> list[Look]:
        return [
            Look(progress.read(), system.cpu_seconds(pid), system.is_stopped(pid))
            for progress, pid in zip(self._progress, self._pids, strict=True)
        ]

    def spooled(self) -> list[tuple[int, bytes]]:
        """Return what ranks printed to their spools since the last time, with the rank's number."""
        printed = []
        for rank, spool in enumerate(self._spools):
            size = os.fstat(spool).st_size
            start = self._shipped[rank]
            if size > start:
                chunk = os.pread(spool, min(size - start, _CHUNK_BYTES), start)
                self._shipped[rank] += len(chunk)
                printed.append((rank, chunk))
        return printed

    def end(self) -> None:
        for rank, pid in enumerate(self._pids):
            connection, self._connections[rank] = self._connections[rank], None
            if connection is not None:
                connection.close()
            self._server.kill(pid)
        deadline = time.monotonic() + 10
        while any(self._server.exit_of(pid) is None for pid in self._pids) and time.monotonic() < deadline:
            wait([self._server.connection], 0.1)
        while self._spools:
            os.close(self._spools.pop())

    def _start(self, spec: worker.Spec) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        memory, spool = new_file(SIZE_BYTES), new_file(0)
        self._spools.append(spool)
        self._shipped.append(0)
        try:
            pid = self._server.fork(worker.serve, spec, [theirs.fileno(), memory, spool])
            self._progress.append(Progress(memory))
        finally:
            theirs.close()
            os.close(memory)
        self._connections.append(Connection(ours.detach()))
        self._pids.append(pid)

    def _read(self, rank: int) -> list[tuple[int, bytes | Died]]:
        connection = self._connections[rank]
        said: list[tuple[int, bytes | Died]] = []
        try:
            while connection is not None and connection.poll():
                said.append((rank, connection.recv_bytes()))
        except (EOFError, OSError):
            self._connections[rank] = None
        return said

    def _deaths(self) -> list[tuple[int, bytes | Died]]:
        said: list[tuple[int, bytes | Died]] = []
        for rank, pid in enumerate(self._pids):
            if rank not in self._said_dead and (status := self._server.exit_of(pid)) is not None:
                self._said_dead.add(rank)
                said += [*self._read(rank), (rank, Died(status))]  # its last words first
        return said
