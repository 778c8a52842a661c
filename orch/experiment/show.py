"""What a run tells while it runs: a line a stage, and where the steps are. On a terminal one line is kept up to date."""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import suppress
from typing import Protocol, TextIO

LINE_EVERY_S = 5.0
BAR = 24
SHORTEST_BAR = 6


class Show(Protocol):
    """Takes what a run has to say; a silent one says nothing."""

    def stage(self, text: str) -> None:
        """Say what begins now."""

    def begin(self, steps: int) -> None:
        """Say that `steps` steps are to come in all."""

    def progress(self, where: str, steps: int, loss: float, samples_per_s: float) -> None:
        """Say that `steps` of them are done, where training is, its loss and speed."""

    def end(self) -> None:
        """Leave the terminal as it was."""


class Quiet:
    """Says nothing."""

    def stage(self, text: str) -> None:
        """Do nothing."""

    def begin(self, steps: int) -> None:
        """Do nothing."""

    def progress(self, where: str, steps: int, loss: float, samples_per_s: float) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""


class Terminal:
    """Writes to standard error: one line kept up to date on a terminal, a line now and then elsewhere.

    Each stage says how many seconds after the start of the run it began, so that a slow one can be seen.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._open = False
        self._steps = 0
        self._started = self._began = self._said = time.monotonic()

    def stage(self, text: str) -> None:
        """Write a line."""
        self.end()
        self._write(f"{time.monotonic() - self._started:5.1f} s  {text}\n")

    def begin(self, steps: int) -> None:
        """Start the clock of the estimate."""
        self._steps = steps
        self._began = self._said = time.monotonic()

    def progress(self, where: str, steps: int, loss: float, samples_per_s: float) -> None:
        """Rewrite the line, or write one every few seconds where nobody can see it being rewritten."""
        now = time.monotonic()
        if not self._live and now - self._said < LINE_EVERY_S:
            return
        self._said = now
        left = (now - self._began) / max(1, steps) * max(0, self._steps - steps)
        figures = [
            f"step {steps} of {self._steps}", where, f"loss {loss:.3f}", f"{samples_per_s:.0f} samples/s", _left(left),
        ]  # fmt: skip
        self._show(figures, steps)

    def line(self, text: str) -> None:
        """Rewrite the line with any text, or write it every few seconds where nobody can see it being rewritten."""
        now = time.monotonic()
        if not self._live:
            if now - self._said >= LINE_EVERY_S:
                self._said = now
                self._write(text + "\n")
            return
        self._write(f"\r\x1b[2K{text[: shutil.get_terminal_size().columns - 1]}")
        self._open = True

    def _show(self, figures: list[str], steps: int) -> None:
        if not self._live:
            self._write(" | ".join(figures) + "\n")
            return
        # A line longer than the terminal is wide would wrap, and then could not be rewritten.
        columns = shutil.get_terminal_size().columns - 1
        line = " | ".join(figures)[:columns]
        room = min(BAR, columns - len(line) - len("[]  99 % "))
        if room >= SHORTEST_BAR:
            line = f"{_bar(steps, self._steps, room)} {line}"
        self._write(f"\r\x1b[2K{line}")
        self._open = True

    def end(self) -> None:
        """Clear the line."""
        if self._open:
            self._write("\r\x1b[2K")
            self._open = False

    def _write(self, text: str) -> None:
        # A reader who has gone (`orch run 2>&1 | head`) is no reason to end a run.
        with suppress(BrokenPipeError):
            self._stream.write(text)
            self._stream.flush()


def _bar(done: int, whole: int, width: int) -> str:
    share = min(1.0, done / max(1, whole))
    filled = round(width * share)
    return f"[{'#' * filled}{'-' * (width - filled)}] {100 * share:3.0f} %"


def _left(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole} s left" if whole < 120 else f"{whole // 60} min {whole % 60} s left"
