"""Step files: what the disk refuses is kept for the next time, in order and once."""

from __future__ import annotations

from orch.track import steps
from orch.track.stack_log import Stack
from orch.track.steps import Step, Value, read_steps, read_values


def test_a_batch_that_was_refused_comes_with_the_next(tmp_path, monkeypatch) -> None:
    refused: list[str] = []

    def attempt(what, action) -> None:
        try:
            action()
        except OSError:
            refused.append(what)

    stack = Stack(tmp_path, 0, attempt)
    append = steps.Appender.append
    for number in range(4):
        if number == 1:
            monkeypatch.setattr(steps.Appender, "append", lambda self, lines: _full())
        if number == 3:
            monkeypatch.setattr(steps.Appender, "append", append)
        stack.log_steps([Step(number, 0, 1.0, 0.1, 0.1)])
        stack.log_values([Value(number, 0.1, "accuracy", 0.5)] if number == 2 else [])
    stack.close()
    assert [step.step for step in read_steps(tmp_path / "steps.seed0.csv")] == [0, 1, 2, 3]
    assert [value.step for value in read_values(tmp_path / "values.seed0.csv")] == [2]
    assert set(refused) == {"keep steps", "keep values"}


def _full() -> None:
    raise OSError(28, "No space left on device")
