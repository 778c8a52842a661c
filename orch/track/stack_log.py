"""The step files of one stack and seed, as a run writes them: what a disk refuses now is kept for the next time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from orch.track import steps

Attempt = Callable[[str, Callable[[], object]], object]


class Stack:
    """Opens its files with the first batch. `attempt(what, action)` does an action and takes the OSError it may raise."""

    def __init__(self, folder: Path, seed: int, attempt: Attempt) -> None:
        self._folder = folder
        self._seed = seed
        self._attempt = attempt
        self._files: dict[str, steps.Appender] = {}
        self._waiting: dict[str, list[str]] = {}

    def log_steps(self, batch: Sequence[steps.Step]) -> None:
        """Append a batch of steps: one write."""
        self._log("steps", steps.STEP_COLUMNS, steps.step_lines(batch))

    def log_values(self, batch: Sequence[steps.Value]) -> None:
        """Append named figures: one write."""
        self._log("values", steps.METRIC_COLUMNS, steps.value_lines(batch))

    def close(self) -> None:
        """Bring everything to the disk, once more what it has refused. Raises OSError when it still does."""
        for kind in list(self._waiting):
            columns = steps.STEP_COLUMNS if kind == "steps" else steps.METRIC_COLUMNS
            self._attempt(f"keep {kind}", lambda kind=kind, columns=columns: self._append(kind, columns))  # type: ignore[misc]
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _log(self, kind: str, columns: tuple[str, ...], lines: Iterable[str]) -> None:
        self._waiting.setdefault(kind, []).extend(lines)
        self._attempt(f"keep {kind}", lambda: self._append(kind, columns))

    def _append(self, kind: str, columns: tuple[str, ...]) -> None:
        if kind not in self._files:
            self._files[kind] = steps.Appender(self._folder / f"{kind}.seed{self._seed}.csv", columns)
        self._files[kind].append(self._waiting[kind])
        del self._waiting[kind]
