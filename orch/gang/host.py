"""A host: the worker processes of one machine, held for a driver elsewhere. The far end of `RemoteWorkers`.

It knows nothing of how the driver reaches it: a Ray actor and a process under torchrun wrap the same class.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from orch.gang.fork_server import ForkServer
from orch.gang.local_workers import Died, LocalWorkers, Look
from orch.gang.worker import Spec, Spool

Address = tuple[str, int] | None
Said = list[tuple[int, bytes | Died]]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a host answers to `wait`: messages by rank, and how each of its workers looks, in their order."""

    said: Said
    looks: list[Look]


class _Crew:
    """The workers of one gang on this host, with their ranks, which need not begin at 0."""

    def __init__(self, server: ForkServer, specs: Sequence[Spec]) -> None:
        self.ranks = [spec.rank for spec in specs]
        self.workers = LocalWorkers(server, specs)
        self.lock = threading.Lock()


class Host:
    """Makes workers and serves them; its fork server loads torch from the moment it is made. Several threads may call.

    `crew` numbers the workers of one gang: a host may serve several gangs, one after the other or at once.
    """

    def __init__(self, driver_path: Sequence[str] = (), preload: Sequence[str] | None = None) -> None:
        sys.path.extend(entry for entry in driver_path if entry not in sys.path and os.path.isdir(entry))
        self._server = ForkServer(preload)
        self._crews: dict[int, _Crew] = {}

    def start(self, crew: int, specs: Sequence[Spec]) -> None:
        """Make the workers of `specs`."""
        self._crews[crew] = _Crew(self._server, specs)

    def post(self, crew: int, rank: int, log: str | Spool | None, store: Address, payload: bytes) -> None:
        """Hand a call to `rank`. `log`: a path of this machine, or SPOOL: output goes back to the driver in replies."""
        its = self._crews.get(crew)
        if its is not None:
            its.workers.store = store
            its.workers.post(its.ranks.index(rank), log, payload)

    def wait(self, crew: int, timeout_s: float) -> Reply:
        """Return what the workers said, as soon as one says something, and at the latest after `timeout_s`."""
        its = self._crews.get(crew)
        if its is None:
            return Reply([], [])
        with its.lock:
            said = its.workers.wait(timeout_s)
            printed: Said = [(index, pickle.dumps(("log", text))) for index, text in its.workers.spooled()]
            return Reply([(its.ranks[index], message) for index, message in printed + said], its.workers.look())

    def stop(self, crew: int) -> None:
        """End the workers. The host stays, and can start others at once."""
        its = self._crews.pop(crew, None)
        if its is not None:
            with its.lock:
                its.workers.end()

    def end(self) -> None:
        """End all workers and their fork server."""
        for crew in list(self._crews):
            self.stop(crew)
        self._server.close()
