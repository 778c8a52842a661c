"""The log of one trial of a sweep: a folder inside the sweep's run, `trials/<number>/`, with what a run keeps.

It costs a fraction of a run: no state of its own, no environment; the sweep's run has both. `recipe.yaml` is the trial's
own recipe, written as JSON, which YAML is a superset of and which is written twenty times as fast.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from orch.track import encoding
from orch.track.directory import slug
from orch.track.stack_log import Stack
from orch.track.tracker import StackLog


class TrialLog:
    """Keeps what one trial did below `path`; None keeps nothing. A disk that refuses never ends a trial."""

    parent_run_id: str | None = None

    def __init__(self, path: Path | None) -> None:
        self.path = path
        if path is not None:  # what a lost node or a killed driver left of the same trial
            shutil.rmtree(path, ignore_errors=True)
        self._stacks: dict[tuple[str, int], Stack] = {}

    def start(self) -> None:
        """Do nothing: the sweep has started long ago."""

    def stack(self, name: str, seed: int = 0) -> StackLog:
        """Return the log of a stack and seed."""
        if self.path is None:
            return _Silent()
        if (name, seed) not in self._stacks:
            self._stacks[name, seed] = Stack(self.path / "stacks" / slug(name), seed, _attempt)
        return self._stacks[name, seed]

    def write(self, name: str, value: object, stack: str | None = None) -> None:
        """Keep a file: text as it is, anything else as JSON."""
        if self.path is not None:
            path = (self.path if stack is None else self.path / "stacks" / slug(stack)) / name
            text = value if isinstance(value, str) else encoding.dumps(value) + "\n"
            _attempt(name, lambda: _write(path, text))

    def trial(self, record: Mapping[str, object]) -> None:
        """Do nothing: a trial has no trials."""

    def environment(self, **facts: object) -> None:
        """Keep what this trial measured of its surroundings."""
        self.write("environment.json", facts)

    def rank_log(self, rank: int) -> Path | None:
        """Return where the log of a rank goes."""
        return None if self.path is None else self.path / "logs" / f"rank{rank}.log"

    def finish(self, results: Mapping[str, object]) -> None:
        """Keep the results."""
        self.write("results.json", results)
        self.close()

    def close(self) -> None:
        """Bring the steps to the disk."""
        for stack in self._stacks.values():
            stack.close()


class _Silent:
    def log_steps(self, batch: object) -> None:
        """Do nothing."""

    def log_values(self, batch: object) -> None:
        """Do nothing."""


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def _attempt(what: str, action: Callable[[], object]) -> None:
    with suppress(OSError):
        action()
