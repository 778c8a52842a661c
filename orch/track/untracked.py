"""A run that keeps nothing: what `--no-track` gives, and what tracking is measured against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from orch.track import steps


class Untracked:
    """A run that leaves nothing behind, for `track: off` and for measuring what tracking costs."""

    path: Path | None = None
    parent_run_id: str | None = None

    def start(self) -> None:
        """Do nothing."""

    def stack(self, name: str, seed: int = 0) -> Untracked:
        """Return a log that keeps nothing."""
        return self

    def log_steps(self, batch: Sequence[steps.Step]) -> None:
        """Do nothing."""

    def log_values(self, batch: Sequence[steps.Value]) -> None:
        """Do nothing."""

    def write(self, name: str, value: object, stack: str | None = None) -> None:
        """Do nothing."""

    def trial(self, record: Mapping[str, object]) -> None:
        """Do nothing."""

    def environment(self, **facts: object) -> None:
        """Do nothing."""

    def rank_log(self, rank: int) -> Path | None:
        """Return None: the gang keeps a log of its own for as long as it lives."""
        return None

    def finish(self, results: Mapping[str, object]) -> None:
        """Do nothing."""
