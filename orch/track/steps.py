"""Steps of one stack and seed as a CSV file that is only ever appended to.

Whole lines go down in one write per batch, so a killed driver loses nothing it handed over; a torn last line (after a
power cut) is dropped by the reader and by the next writer. NaN and infinities are plain CSV words (`nan`, `inf`).
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

STEP_COLUMNS = ("step", "block", "loss", "step_time_s", "clock_s")
METRIC_COLUMNS = ("step", "clock_s", "name", "value")


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `clock_s` is the stack's own clock: the time it has trained so far, other stacks' blocks left out.

    None stands for a figure that was not taken, such as the time of a step that fell into a warm-up.
    """

    step: int
    block: int | None
    loss: float | None
    step_time_s: float | None
    clock_s: float


@dataclass(frozen=True, slots=True)
class Value:
    """A named figure at a step, such as an accuracy on held-out data."""

    step: int
    clock_s: float
    name: str
    value: float


class Appender:
    """Appends lines to a CSV file with a fixed header."""

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        end = _end_of_whole_lines(self._fd)
        os.ftruncate(self._fd, end)
        if end == 0:
            self._write((",".join(columns) + "\n").encode())

    def append(self, lines: Iterable[str]) -> None:
        """Write `lines`, each ending in a newline, at once. Raises OSError when the disk refuses."""
        data = "".join(lines).encode("utf-8", errors="backslashreplace")
        if data:
            self._write(data)

    def close(self) -> None:
        """Bring everything to the disk and release the file. Closing twice does nothing."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def _write(self, data: bytes) -> None:
        start = os.fstat(self._fd).st_size
        written = os.write(self._fd, data)
        while written < len(data):
            try:
                written += os.write(self._fd, data[written:])
            except OSError:
                os.ftruncate(self._fd, start)  # all of the batch or none of it
                raise


def step_lines(steps: Iterable[Step]) -> Iterator[str]:
    """Return the CSV line of each step; figures keep all their digits."""
    for s in steps:
        yield f"{s.step},{_cell(s.block)},{_cell(s.loss)},{_cell(s.step_time_s)},{_cell(s.clock_s)}\n"


def value_lines(values: Iterable[Value]) -> Iterator[str]:
    """Return the CSV line of each value; names with commas or quotes are quoted."""
    for v in values:
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerow(
            (v.step, _cell(v.clock_s), v.name.replace("\r", " ").replace("\n", " "), _cell(v.value))
        )
        yield buffer.getvalue()


def read_steps(path: Path) -> list[Step]:
    """Return the steps of a file in step order. A step written twice, as after a recovery, counts as last written."""
    found = {step.step: step for step in map(_step, _rows(path, STEP_COLUMNS)) if step is not None}
    return [found[number] for number in sorted(found)]


def read_values(path: Path) -> list[Value]:
    """Return the named figures of a file in step order; last written wins for a name and step met twice."""
    found = {(v.step, v.name): v for v in map(_value, _rows(path, METRIC_COLUMNS)) if v is not None}
    return [found[key] for key in sorted(found)]


class Follower:
    """Reads what was added to the files of a part since the last look.

    `repeated` becomes True when a step or value came a second time: then what was read before no longer counts.
    """

    def __init__(self) -> None:
        self.repeated = False
        self._offsets = [0, 0]
        self._last: dict[str, int] = {}

    def new(self, steps: Path | None, values: Path | None) -> tuple[list[Step], list[Value]]:
        """Return the whole lines that were added, in file order."""
        fresh = (
            [s for s in map(_step, self._rows(0, steps, STEP_COLUMNS)) if s is not None],
            [v for v in map(_value, self._rows(1, values, METRIC_COLUMNS)) if v is not None],
        )
        for name, number in [("", s.step) for s in fresh[0]] + [(f"={v.name}", v.step) for v in fresh[1]]:
            self.repeated |= number <= self._last.get(name, -1)
            self._last[name] = max(number, self._last.get(name, -1))
        return fresh

    def skip(self, steps: Path | None, values: Path | None) -> None:
        """Take everything that is there as read."""
        self.new(steps, values)
        self.repeated = False

    def _rows(self, which: int, path: Path | None, columns: tuple[str, ...]) -> list[dict[str, str]]:
        if path is None or not path.exists():
            return []
        with path.open("rb") as file:
            file.seek(self._offsets[which])
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offsets[which] += len(whole)
        return list(_parsed(whole, columns))


def _step(row: Mapping[str, str]) -> Step | None:
    try:
        return Step(
            step=int(row["step"]),
            block=int(row["block"]) if row["block"] else None,
            loss=_number(row["loss"]),
            step_time_s=_number(row["step_time_s"]),
            clock_s=float(row["clock_s"]),
        )
    except ValueError:
        return None


def _value(row: Mapping[str, str]) -> Value | None:
    try:
        return Value(int(row["step"]), float(row["clock_s"]), row["name"], float(row["value"]))
    except ValueError:
        return None


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[dict[str, str]]:
    try:
        data = path.read_bytes()
    except OSError:
        return
    yield from _parsed(data[: data.rfind(b"\n") + 1], columns)


def _parsed(lines: bytes, columns: tuple[str, ...]) -> Iterator[dict[str, str]]:
    # The header parses as a row too; its words are no numbers, so whoever reads rows drops it.
    for cells in csv.reader(io.StringIO(lines.decode("utf-8", errors="replace"))):
        if len(cells) == len(columns):
            yield dict(zip(columns, cells, strict=True))


def _cell(value: float | None) -> str:
    return "" if value is None else repr(float(value)) if isinstance(value, float) else str(value)


def _number(cell: str) -> float | None:
    return float(cell) if cell else None


def _end_of_whole_lines(fd: int) -> int:
    end = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - 65536)
        chunk = os.pread(fd, end - start, start)
        newline = chunk.rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
