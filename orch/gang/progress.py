"""Where a rank is, in memory that outlives it: step, task, and whether it waits for others.

A write is a few stores into a shared mapping (well under 1 us), so the runtime can say every task. The driver maps the
same file, so it can still read the last words of a process that was killed.

Layout, little 64-bit cells: [0] number of writes, [1] step + 1, [2] 1 + position of the task's name, [3] waiting,
[4] bytes of the name table in use. Zero means "nothing said", which is what a new file holds. Names are kept in a table
and written once, so a reader never sees half a name.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from dataclasses import dataclass

SIZE_BYTES = 1 << 18
_HEADER = 64
_LENGTH = struct.Struct("<H")


class _Keep:
    """The type of KEEP: an argument that was not given."""


KEEP = _Keep()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank said it is. `writes` counts what it said, so that two equal counts mean no progress."""

    step: int | None = None
    task: str | None = None
    waiting: bool = False
    writes: int = 0

    def __str__(self) -> str:
        parts = [f"step {self.step}"] if self.step is not None else []
        parts += [f"task {self.task}"] if self.task is not None else []
        return ", ".join(parts)


def new_file(size_bytes: int = SIZE_BYTES) -> int:
    """Return the descriptor of an unnamed file, opened to append: nothing to remove, whoever dies."""
    with tempfile.TemporaryFile("a+b") as file:
        file.truncate(size_bytes)
        return os.dup(file.fileno())


class Progress:
    """One rank's place, shared by the process that writes and the one that reads."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._memory = mmap.mmap(-1 if descriptor is None else descriptor, SIZE_BYTES)
        self._cells = memoryview(self._memory)[:_HEADER].cast("q")
        self._positions: dict[str, int] = {}

    def set(self, step: int | None = None, task: str | _Keep | None = KEEP, waiting: bool | None = None) -> None:
        """Say where this rank is; what is not given stays. `task=None`: between tasks. `waiting`: for other ranks."""
        cells = self._cells
        if step is not None:
            cells[1] = step + 1
        if task is not KEEP:
            cells[2] = 0 if task is None else self._positions.get(task) or self._enter(task)  # type: ignore[arg-type]
        if waiting is not None:
            cells[3] = waiting
        cells[0] += 1

    def read(self) -> Place:
        """Return the last place said; empty where nothing was."""
        writes, step, name, waiting = self._cells[:4]
        return Place(step - 1 if step else None, self._name(name - 1) if name else None, bool(waiting), writes)

    def clear(self) -> None:
        """Forget the place but keep counting: a new call starts nowhere."""
        self._cells[1] = self._cells[2] = self._cells[3] = 0
        self._cells[0] += 1

    def _enter(self, task: str) -> int:
        used = self._cells[4]
        name = task.encode()[:1000]
        start = _HEADER + used
        if start + _LENGTH.size + len(name) > SIZE_BYTES:  # a full table: later names stay unsaid, nothing breaks
            self._positions[task] = 0
            return 0
        self._memory[start : start + _LENGTH.size + len(name)] = _LENGTH.pack(len(name)) + name
        self._cells[4] = used + _LENGTH.size + len(name)
        self._positions[task] = used + 1
        return used + 1

    def _name(self, position: int) -> str | None:
        start = _HEADER + position
        if start + _LENGTH.size > SIZE_BYTES:
            return None
        (length,) = _LENGTH.unpack_from(self._memory, start)
        return self._memory[start + _LENGTH.size : start + _LENGTH.size + length].decode(errors="replace")
