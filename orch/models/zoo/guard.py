"""While a recipe calls a function of an installed package: no pickles, no programs, no code from elsewhere.

A recipe is data, and may come from a stranger. Installed packages hold functions that run what they read (`torch.load`,
`torch.hub.load`, remote code of model hubs), so a recipe that names such a function and gives it a file would run that file.
Code that the project file lists is the user's own, and may do anything.
"""

from __future__ import annotations

import contextlib
import sys
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

_PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "pty.spawn")
_guarded = threading.local()
_installed_hook = threading.Lock()


class RefusedError(Exception):
    """An installed function tried what only the user's own code may do."""


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Refuse pickles, programs and code that is not installed in this thread, for the time of the block."""
    if _installed_hook.acquire(blocking=False):  # once a process, and only where a recipe names a function
        sys.addaudithook(_look)
    before, _guarded.on = getattr(_guarded, "on", False), True
    try:
        yield
    finally:
        _guarded.on = before


def _look(event: str, arguments: tuple[Any, ...]) -> None:
    """Raise RefusedError for what a guarded block may not do: see guarded."""
    if not getattr(_guarded, "on", False):
        return
    if event == "pickle.find_class":
        raise RefusedError(f"it reads a pickle, which can run anything (here {arguments[0]}.{arguments[1]})")
    if event in _PROGRAMS:
        raise RefusedError(f"it starts a program ({event})")
    if event == "exec" and isinstance(arguments[0], CodeType) and not _trusted(arguments[0].co_filename):
        raise RefusedError(f"it runs code that is not installed ({arguments[0].co_filename})")


def _trusted(filename: str) -> bool:
    """Tell whether code comes from an installed file; `<string>` and the like are written by code that does."""
    path = Path(filename)
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return not path.is_absolute() or any(path.is_relative_to(place) for place in places)
