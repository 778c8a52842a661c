"""The journal of a sweep: Optuna's own file format, kept by the lock that the kernel lets go when its holder is killed.

Optuna's journal file is locked by a link beside it: a driver killed at the wrong moment leaves the link, and everybody
waits half a minute for it. It also forces every line to the disk, which costs more than a simulated trial. Here a line
is one write under flock: a killed process loses nothing it has written, and half a line (a full disk) is cut off by
whoever writes next. optuna-dashboard and JournalFileBackend read the file as their own.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend

_TAIL = 1 << 16


class Journal(BaseJournalBackend):
    """A log of operations in `path`, one JSON document a line. Several processes may read and append."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self._path = path
        self._offsets = [0]

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Yield the operations from number `log_number_from` on; a last line that is not whole is not there yet."""
        known = min(log_number_from, len(self._offsets) - 1)
        if self._path.stat().st_size <= self._offsets[known]:  # asked ten times a trial, and mostly nothing is new
            return
        with self._path.open("rb") as file:
            file.seek(self._offsets[known])
            for number, line in enumerate(file, start=known):
                if not line.endswith(b"\n"):
                    return
                if number + 1 == len(self._offsets):
                    self._offsets.append(self._offsets[number] + len(line))
                if number >= log_number_from:
                    yield json.loads(line)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append operations, all or none. Raises OSError where the disk refuses them."""
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        with locked(self._path) as handle:
            size = _whole(handle)
            try:
                written = os.write(handle, text)
                if written < len(text):
                    written += os.write(handle, text[written:])
            except OSError:
                os.ftruncate(handle, size)
                raise


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Hold the lock of a file, made if it is not there; yield a handle that appends to it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


def _whole(handle: int) -> int:
    """Cut off a last line that somebody could not finish; return the size of the file."""
    size = os.fstat(handle).st_size
    if size == 0 or os.pread(handle, 1, size - 1) == b"\n":
        return size
    start = max(0, size - _TAIL)
    tail = os.pread(handle, size - start, start)
    size = start + tail.rfind(b"\n") + 1
    os.ftruncate(handle, size)
    return size
