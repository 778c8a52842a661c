"""The live line of a sweep."""

from __future__ import annotations

import io

from orch.experiment.show import Terminal
from orch.sweep.metrics import Objective, Sought
from orch.sweep.study import About, Record
from orch.sweep.view import View


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def record(number: int, state: str, value: float = 1.0) -> Record:
    return Record(number, state, {"stack": "dear"}, About(state, {"step_time": value} if state == "complete" else {}))


def test_the_line_says_done_best_ends_and_time_left() -> None:
    screen = Screen()
    view = View(Terminal(screen), Sought((Objective("step_time", False),)), 10, [record(0, "complete", 3.0)])
    view(None, 1)
    assert screen.getvalue().strip("\r\n\x1b[K ").endswith("1 of 10 trials | best 3 s (trial 0, dear) | 1 running")
    view._said = 0.0
    for ended in (record(1, "complete", 2.0), record(2, "pruned"), record(3, "failed"), record(4, "complete", 5.0)):
        view(ended, 0)
    text = view.text(view._began + 4.0, running=2)
    assert text == "5 of 10 trials | best 2 s (trial 1, dear) | 2 running | 1 pruned | 1 failed | 5 s left"
    assert "2 of 10 trials | best 2 s (trial 1, dear)" in screen.getvalue()


def test_a_long_time_is_told_in_minutes() -> None:
    view = View(Terminal(Screen()), Sought((Objective("step_time", False),)), 3, [])
    view(record(0, "infeasible"), 0)
    assert view.text(view._began + 100.0, 0).endswith("1 of 3 trials | 1 infeasible | 3 min 20 s left"[-14:])
