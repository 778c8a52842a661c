"""Hosts and the workers behind them: output that travels, hosts that vanish or fall silent."""

from __future__ import annotations

import os
import pickle
import sys
import time
from pathlib import Path

import pytest

from orch.errors import RunError
from orch.gang import remote_workers
from orch.gang.gang import WorkersGang, await_ready
from orch.gang.host import Host, Reply
from orch.gang.local_workers import Died, Look
from orch.gang.progress import Place
from orch.gang.remote_workers import HostLostError, RemoteWorkers
from orch.gang.worker import SPOOL, Spec
from tests.gang import functions


class HereLink:
    """A link to a host in this process that shares no disk with the driver."""

    def __init__(self, host: Host, crew: int, specs: list[Spec]) -> None:
        self.ranks = [spec.rank for spec in specs]
        self.name = f"crew {crew}"
        self._host, self._crew = host, crew
        host.start(crew, specs)

    def post(self, rank: int, log_path: str | None, store: tuple[str, int] | None, payload: bytes) -> None:
        self._host.post(self._crew, rank, SPOOL, store, payload)

    def answer(self) -> Reply | None:
        return self._host.wait(self._crew, 0.05)

    def end(self) -> bool:
        self._host.stop(self._crew)
        return True


class HereWorkers(RemoteWorkers):
    def pause(self, timeout_s: float) -> None:
        """Links wait by themselves."""


def test_two_hosts_make_one_gang_and_their_output_comes_to_the_drivers_logs(tmp_path: Path) -> None:
    host = Host([entry or os.getcwd() for entry in sys.path])
    specs = [Spec(rank, 3, 1) for rank in range(3)]
    workers = HereWorkers([HereLink(host, 0, specs[:2]), HereLink(host, 1, specs[2:])])
    await_ready(workers)
    gang = WorkersGang(workers, "ray", tmp_path)
    assert gang.call(functions.all_reduce) == [6.0] * 3
    gang.call(functions.speak, "first")
    gang.call(functions.speak, "second")
    gang.call(functions.who)  # what was printed last arrives with the next reply at the latest
    assert (tmp_path / "rank2.log").read_text() == "first 2\nfirst err 2\nsecond 2\nsecond err 2\n"
    with pytest.raises(RunError, match=r"rank 2 of 3 raised ValueError in step 3.*ranks 0, 1 waited for it") as caught:
        gang.call(functions.fail_at, 2, "raise")
    assert "second line" in "".join(caught.value.__notes__)
    host.end()


class MadeUpLink:
    """Says what it is told to; loses its host when told an error."""

    ranks = (0, 1)
    name = "made up"

    def __init__(self, *answers: Reply | HostLostError | None) -> None:
        self._answers = list(answers)

    def post(self, *args: object) -> None:
        """Take anything."""

    def answer(self) -> Reply | None:
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, HostLostError):
            raise answer
        return answer

    def end(self) -> bool:
        return False


def test_a_lost_host_is_the_death_of_those_of_its_workers_that_lived() -> None:
    looks = [Look(Place(1, "a"), 0.0, False)] * 2
    event = pickle.dumps(("event", 1))
    link = MadeUpLink(Reply([(0, event)], looks), Reply([(1, Died(3))], looks), HostLostError("gone"))
    workers = HereWorkers([link])
    assert workers.wait(0) == [(0, event)]
    assert workers.wait(0) == [(1, Died(3))]
    assert workers.wait(0) == [(0, Died(-9, "gone"))]
    assert workers.wait(0) == []
    assert workers.look() == looks


def test_workers_of_a_silent_host_look_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = HereWorkers([MadeUpLink(Reply([], [Look(Place(1, "a"), 1.0, False)] * 2))])
    workers.wait(0)
    assert [look.stopped for look in workers.look()] == [False, False]
    now = time.monotonic() + remote_workers.SILENT_S + 1
    monkeypatch.setattr(remote_workers.time, "monotonic", lambda: now)
    assert workers.look() == [Look(Place(1, "a"), None, True)] * 2
