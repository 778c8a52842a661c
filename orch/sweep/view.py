"""What a sweep tells while it runs: how many trials are done, how they ended, the best so far, how long it will take."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from orch.experiment.show import Terminal
from orch.sweep.metrics import Sought, key, shown
from orch.sweep.study import COMPLETE, Record, best_of

_EVERY_S = 0.1


class View:
    """Keeps a line up to date on standard error. Not thread-safe: its caller tells one thing at a time."""

    def __init__(self, terminal: Terminal, sought: Sought, total: int | None, earlier: list[Record]) -> None:
        self._terminal = terminal
        self._sought = sought
        self._total = total
        self._ended = {record.number: record.state for record in earlier if record.finished}
        self._best = best_of(earlier, sought)
        self._done = 0
        self._began = time.monotonic()
        self._said = 0.0

    def __call__(self, record: Record | None, running: int) -> None:
        """Take in a trial that ended, None for one that began; `running` are at work now."""
        if record is not None:
            self._done += 1
            self._ended[record.number] = record.state
            if record.about.replaces is not None:
                self._ended.pop(record.about.replaces, None)
            if record.state == COMPLETE:
                self._best = best_of([*([self._best] if self._best else []), record], self._sought)
        now = time.monotonic()
        if now - self._said >= _EVERY_S:
            self._said = now
            self._terminal.line(self.text(now, running))

    def text(self, now: float, running: int) -> str:
        """Return the line: done of total, best so far, running, how the others ended, time left."""
        states, done = Counter(self._ended.values()), len(self._ended)
        parts = [f"{done} of {self._total} trials" if self._total else f"{done} trials"]
        if self._best is not None:
            parts.append(f"best {self._text(self._best)}")
        counts: dict[str, int] = {"running": running, **{k: v for k, v in states.items() if k != COMPLETE}}
        parts += [f"{number} {state}" for state, number in counts.items() if number]
        if self._total and self._done:
            left = (now - self._began) / self._done * max(0, self._total - done)
            parts.append(_left(left))
        return " | ".join(parts)

    def _text(self, best: Record) -> str:
        values: dict[str, Any] = dict(best.about.values)
        first = [shown(key(objective.metric), values[objective.metric]) for objective in self._sought.objectives]
        return f"{', '.join(first)} (trial {best.number}, {best.params.get('stack', '')})"


def _left(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole} s left" if whole < 120 else f"{whole // 60} min {whole % 60} s left"
