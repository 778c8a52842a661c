"""What a pass did, or how two plans differ: by task, and in totals."""

from __future__ import annotations

from collections.abc import Iterator

from orch.plan.plan import Plan, Step, Task


def diff(old: Plan, new: Plan) -> list[str]:
    """Return lines `- task`, `+ task`, `~ task: field old -> new`, stream by stream; empty when the plans mean the
    same.
    """
    lines: list[str] = []
    for index in range(max(old.period, new.period)):
        before, after = old.steps[index % old.period], new.steps[index % new.period]
        title = f"step {index} of {max(old.period, new.period)}: " if max(old.period, new.period) > 1 else ""
        lines += [title + line for line in _step_diff(before, after)]
    return lines


def _step_diff(old: Step, new: Step) -> Iterator[str]:
    before, after = {task.name: task for task in old}, {task.name: task for task in new}
    for name, task in before.items():
        if name not in after:
            yield f"- {describe(task)}"
    for name, task in after.items():
        if name not in before:
            yield f"+ {describe(task)}"
        elif task != before[name]:
            yield from _changes(before[name], task)
    common = set(before) & set(after)
    for stream in dict.fromkeys(task.stream for task in new):
        if [t.name for t in old.stream(stream) if t.name in common] != [
            t.name for t in new.stream(stream) if t.name in common
        ]:
            yield f"~ the order of stream {stream}"


def _changes(old: Task, new: Task) -> Iterator[str]:
    for field in ("stream", "after", "after_previous", "role", "group", "lag"):
        if getattr(old, field) != getattr(new, field):
            yield f"~ {new.name}: {field} {_shown(getattr(old, field))} -> {_shown(getattr(new, field))}"
    if old.op != new.op:
        yield f"~ {new.name}: {_op(old)} -> {_op(new)}"


def _shown(value: object) -> str:
    return ", ".join(value) or "nothing" if isinstance(value, tuple) else str(value)


def _op(task: Task) -> str:
    return f"{task.op.kind} of {task.op.nbytes} B" if task.op.nbytes else task.op.kind


def describe(task: Task) -> str:
    """Return one task on one line."""
    waits = f" after {', '.join(task.after)}" if task.after else ""
    return f"{task.name} ({_op(task)}, {task.stream}){waits}"
