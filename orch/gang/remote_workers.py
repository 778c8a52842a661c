"""Workers on several hosts: one long question outstanding at each, and what they last looked like."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Protocol

from orch.gang.host import Reply
from orch.gang.local_workers import Died, Look
from orch.gang.progress import Place

# A host answers within ASK_S; one that has been silent for SILENT_S counts as stopped.
ASK_S = 0.25
SILENT_S = 3.0


class HostLostError(Exception):
    """A host is gone; the text says what is known."""


class Link(Protocol):
    """The driver's line to one host. Answers arrive in any order among hosts, one at a time from each."""

    ranks: Sequence[int]
    name: str

    def post(self, rank: int, log_path: str | None, store: tuple[str, int] | None, payload: bytes) -> None:
        """Hand a call to a rank of this host; returns at once."""

    def answer(self) -> Reply | None:
        """Return the answer to the outstanding question and ask the next; None while there is none. HostLostError: host gone."""

    def end(self) -> bool:
        """End the host's workers; tell whether the host itself is well."""


class RemoteWorkers:
    """Workers of the hosts behind `links`. `pause(timeout_s)` returns early when one of them may have an answer."""

    def __init__(self, links: Sequence[Link]) -> None:
        self.size = sum(len(link.ranks) for link in links)
        self.store: tuple[str, int] | None = None
        self._links = list(links)
        self._of_rank = {rank: link for link in links for rank in link.ranks}
        self._looks = {rank: Look(Place(), None, False) for rank in self._of_rank}
        self._heard_s = {link.name: time.monotonic() for link in links}
        self._gone: set[str] = set()
        self._dead: set[int] = set()

    def pause(self, timeout_s: float) -> None:
        """Wait until a host may have answered, at most `timeout_s`."""
        raise RuntimeError("a kind of remote workers must say how it waits")

    def post(self, rank: int, log_path: str | None, payload: bytes) -> None:
        """Hand a call to a rank: see Workers."""
        with contextlib.suppress(HostLostError):  # reported by wait
            self._of_rank[rank].post(rank, log_path, self.store, payload)

    def wait(self, timeout_s: float) -> list[tuple[int, bytes | Died]]:
        """Return what the ranks said: see Workers."""
        deadline = time.monotonic() + timeout_s
        while True:
            said = [message for link in self._links if link.name not in self._gone for message in self._hear(link)]
            left = deadline - time.monotonic()
            if said or left <= 0:
                return said
            self.pause(left)

    def look(self) -> list[Look]:
        """Return what is known of every rank: see Workers. A silent host's workers look stopped."""
        now = time.monotonic()
        looks = []
        for rank in range(self.size):
            look = self._looks[rank]
            silent = now - self._heard_s[self._of_rank[rank].name] > SILENT_S
            looks.append(Look(look.place, None, True) if silent else look)
        return looks

    def end(self) -> None:
        """End every worker: see Workers."""
        for link in self._links:
            link.end()

    def _hear(self, link: Link) -> list[tuple[int, bytes | Died]]:
        try:
            reply = link.answer()
        except HostLostError as error:
            self._gone.add(link.name)
            left = [rank for rank in link.ranks if rank not in self._dead]
            self._dead.update(left)
            return [(rank, Died(-9, str(error))) for rank in left]
        if reply is None:
            return []
        self._heard_s[link.name] = time.monotonic()
        self._looks.update(zip(link.ranks, reply.looks, strict=False))
        self._dead.update(rank for rank, message in reply.said if isinstance(message, Died))
        return reply.said
