"""Real processes for the runtime's tests: the warm gangs of `orch.gang`, with process groups of their own for every run."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from orch.gang import Worker, make_gang

_runs = count()


class World:
    """What a function of `run` is given: its rank, the world size, and groups over all ranks."""

    def __init__(self, worker: Worker, number: int) -> None:
        self.rank = worker.rank
        self.size = worker.world_size
        self._worker = worker
        self._number = number

    def group(self, name: str = "world", threads: int = 2) -> Any:
        """Return a group over all ranks that no earlier run has used; every rank must ask for it."""
        return self._worker.process_group(f"{name}-{self._number}", threads=threads)

    def block(self, name: str, ranks: list[int], threads: int = 1) -> Any:
        """Return a group over `ranks` that no earlier run has used; each of them must ask for it."""
        return self._worker.process_group(f"{name}-{self._number}", ranks, threads=threads)

    def groups(self) -> dict[str, Any]:
        """Return the groups of a plain plan."""
        return {"world": self.group()}


def run(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run `function(world, *arguments)` on `size` ranks; return what each returned. What a rank raises is raised here."""
    with make_gang("processes", size) as gang:
        return gang.call(_in_world, next(_runs), function, *arguments)


def _in_world(worker: Worker, number: int, function: Callable[..., Any], *arguments: Any) -> Any:
    return function(World(worker, number), *arguments)
