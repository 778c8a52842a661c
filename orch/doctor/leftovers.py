"""What killed runs left behind: sessions of Ray, emulated clusters, runs that say they are still going. Only what is surely
nobody's.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from orch.gang import emulate_leftovers, ray_local
from orch.track import directory, state


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something whose owner is gone: what it is, its name, and how it is taken away."""

    kind: str
    name: str
    take_away: Callable[[], object] = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def leftovers(runs: Path) -> list[Leftover]:
    """Return everything that killed runs of this user left on this machine, and those of the directory `runs`."""
    return [*_emulated(), *_ray_sessions(), *_half_removed(runs), *_orphans(runs)]


def remove(found: list[Leftover]) -> list[tuple[Leftover, str]]:
    """Take leftovers away; return those that resisted, with the reason."""
    resisted = []
    for leftover in found:
        try:
            leftover.take_away()
        except OSError as error:
            resisted.append((leftover, error.strerror or str(error)))
    return resisted


def _emulated() -> list[Leftover]:
    """Return parts of emulated clusters, in the order in which they can be removed."""
    return [Leftover(part.kind, _part(part), partial(_take_away, part)) for part in emulate_leftovers.leftovers()]


def _part(part: emulate_leftovers.Leftover) -> str:
    return str(part).removeprefix(f"{part.kind} ")


def _take_away(part: emulate_leftovers.Leftover) -> None:
    if emulate_leftovers.remove([part]):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def _ray_sessions() -> list[Leftover]:
    return [
        Leftover("Ray session", path, partial(ray_local.remove_session, path)) for path in ray_local.stale_sessions()
    ]


def _half_removed(runs: Path) -> list[Leftover]:
    return [
        Leftover("half-removed run", str(path), partial(shutil.rmtree, path))
        for path in sorted(runs.glob("*/.removed-*"))
    ]


def _orphans(runs: Path) -> list[Leftover]:
    return [
        Leftover("run without a driver", run.id, partial(state.settle, run.path))
        for run in directory.find_all(runs)
        if (found := run.state) is not None and found.is_orphan
    ]
