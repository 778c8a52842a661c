"""What a run tells while it runs: a line a stage, and where the steps are. On a terminal one line is kept up to date."""

from __future__ import annotations

import sys
import time
from typing import Protocol, TextIO

LINE_EVERY_S = 5.0


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
    """Writes to standard error: one line kept up to date on a terminal, a line now and then elsewhere."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._open = False
        self._steps = 0
        self._began = self._said = time.monotonic()

    def stage(self, text: str) -> None:
        """Write a line."""
        self.end()
        self._stream.write(f"{text}\n")
        self._stream.flush()

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
        text = f"step {steps} of {self._steps} | {where} | loss {loss:.3f} | {samples_per_s:.0f} samples/s | {left:.0f} s left"
        if self._live:
            self._stream.write(f"\r\x1b[2K{text}")
            self._open = True
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def end(self) -> None:
        """Clear the line."""
        if self._open:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()
            self._open = False
