"""Functions that spoil something in a worker, so that a run must notice; workers import them by name."""

from __future__ import annotations

from typing import Any

import torch

from orch.runtime import session


def report_other_bytes(worker: Any, stack: str, seed: int) -> None:
    """Let rank 1 record a byte less than it hands to every collective."""
    if worker.rank == 1:
        record = session._session(worker).trainings[stack, seed].engine.record
        opened = record.open

        def open_(*args: Any, **named: Any) -> Any:
            step = opened(*args, **named)
            step.sent = _Less()
            return step

        record.open = open_  # type: ignore[method-assign]


class _Less(dict[int, int]):
    def __setitem__(self, key: int, value: int) -> None:
        super().__setitem__(key, value - 1)


def nudge(worker: Any, stack: str, seed: int) -> None:
    """Let the last rank hold other parameters than the rest."""
    if worker.rank == worker.world_size - 1:
        parameter = next(session._session(worker).trainings[stack, seed].engine.model.parameters())
        with torch.no_grad():
            parameter.add_(1e-6)


class Around:
    """A gang as it is: a base for those of which a test changes something."""

    def __init__(self, gang: Any) -> None:
        self._gang = gang

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gang, name)


class Spoiled(Around):
    """A gang that calls a saboteur before a function of the session."""

    def __init__(self, gang: Any, before: Any, saboteur: Any, stack: str) -> None:
        super().__init__(gang)
        self._before, self._saboteur, self._stack = before, saboteur, stack

    def call(self, function: Any, *args: Any, **named: Any) -> list[Any]:
        if function is self._before and args[0] == self._stack:
            self._gang.call(self._saboteur, *args[:2])
        result: list[Any] = self._gang.call(function, *args, **named)
        return result
