"""What killed runs left behind: sessions of Ray, and runs that say they are still going. Only what is surely nobody's."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from orch.gang import ray_local
from orch.track import directory, state


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something whose owner is gone: what it is, its name, and how it is taken away."""

    kind: str
    name: str
    take_away: Callable[[], None] = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def leftovers(runs: Path) -> list[Leftover]:
    """Return everything that killed runs of this user left on this machine, and those of the directory `runs`."""
    return [*_ray_sessions(), *_half_removed(runs), *_orphans(runs)]


def remove(found: list[Leftover]) -> list[tuple[Leftover, str]]:
    """Take leftovers away; return those that resisted, with the reason."""
    resisted = []
    for leftover in found:
        try:
            leftover.take_away()
        except OSError as error:
            resisted.append((leftover, error.strerror or str(error)))
    return resisted


def _ray_sessions() -> list[Leftover]:
    return [
        Leftover("Ray session", path, lambda path=path: ray_local.remove_session(path))  # type: ignore[misc]
        for path in ray_local.stale_sessions()
    ]


def _half_removed(runs: Path) -> list[Leftover]:
    return [
        Leftover("half-removed run", str(path), lambda path=path: shutil.rmtree(path))  # type: ignore[misc]
        for path in sorted(runs.glob("*/.removed-*"))
    ]


def _orphans(runs: Path) -> list[Leftover]:
    return [
        Leftover("run without a driver", run.id, lambda path=run.path: _settle(path))  # type: ignore[misc]
        for run in directory.find_all(runs)
        if (found := run.state) is not None and found.is_orphan
    ]


def _settle(path: Path) -> None:
    """Write the true end of a run; its entry in the index follows when `orch runs` next looks."""
    state.settle(path)
