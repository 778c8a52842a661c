"""Gradients in the holes that rows leave on the network: each is sent where it delays the rows behind it least."""

from __future__ import annotations

from collections.abc import Callable

from orch.plan import Collective, Rows, Step, Task

SLACKS = (0.0, 0.5)


def filled(step: Step, seconds_of: Callable[[Task], float], slack: float) -> Step:
    """Return the step with every send of gradients held back until the rows that follow leave it a hole: one that it fits, but
    for a share `slack` of what it takes. After the last rows, and where somebody waits for it, it is sent as before.

    The step is walked as the simulator walks it, so a hole is what a stream that waits for its next rows would idle.
    """
    rows_left = {stream: sum(isinstance(t.op, Rows) for t in step.stream(stream)) for stream in _streams(step)}
    free: dict[str, float] = {}
    ends: dict[str, float] = {}
    held: list[Task] = []
    result: list[Task] = []

    def begins(task: Task) -> float:
        return max([free.get(task.stream, 0.0), *(ends[name] for name in task.after)])

    def place(task: Task) -> None:
        free[task.stream] = ends[task.name] = begins(task) + seconds_of(task)
        result.append(task)

    for task in step:
        if isinstance(task.op, Collective) and task.op.tensors and rows_left.get(task.stream) and not task.lag:
            held.append(task)
            continue
        awaited = [number for number, send in enumerate(held) if send.name in task.after]
        for _ in range(max(awaited, default=-1) + 1):
            place(held.pop(0))
        if isinstance(task.op, Rows):
            start = begins(task)
            while held and held[0].stream == task.stream:
                taken = seconds_of(held[0])
                if begins(held[0]) + (1.0 - slack) * taken > start:
                    break
                place(held.pop(0))
            rows_left[task.stream] -= 1
        place(task)
        if not any(rows_left.values()):
            while held:
                place(held.pop(0))
    return Step((*result, *held))


def _streams(step: Step) -> set[str]:
    return {task.stream for task in step if isinstance(task.op, Rows)}
