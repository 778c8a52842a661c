"""Work that finishes a step in the next one: each layer's update, and what brings it, just before the forward that reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from orch.plan import Forward, Step, Task, Update
from orch.technique import Context


@dataclass
class Half:
    """A step cut in two: what runs in it, and what finishes it in the next one, by group of layers in forward order."""

    early: list[Task]
    late: list[Group] = field(default_factory=list)


@dataclass
class Group:
    """The all-gathers of a group of layers, what follows them on the device, and the first forward that needs them.

    None: no forward does, so they are done before the first one.
    """

    gathers: list[Task]
    finish: list[Task]
    forward: str | None


def woven(before: Half, own: Half, prefetch: int | None = None) -> Step:
    """Return one step list: the previous step's second half woven into the forward pass, then the step's own first
    half.
    """
    forwards = [task.name for task in own.early if isinstance(task.op, Forward)]
    waiting: dict[str | None, list[Group]] = {}
    for group in before.late:
        # Nothing read it in forward: it must be done before the step begins.
        waiting.setdefault(group.forward if group.forward in forwards else next(iter(forwards), None), []).append(group)
    computing: list[Task] = []
    reached: list[str | None] = []  # per group: the last task on the device before forward reaches it
    for task in own.early:
        for group in waiting.pop(task.name, []):
            reached.append(computing[-1].name if computing else None)
            computing.extend(group.finish)
        computing.append(task)
    return Step(tuple(_with_gathers(computing, before.late, reached, prefetch)))


def _with_gathers(
    tasks: Sequence[Task], groups: Sequence[Group], reached: Sequence[str | None], ahead: int | None
) -> Iterator[Task]:
    """Yield `tasks` with each group's all-gathers as early as `ahead` allows: once forward reaches the group so far
    before.
    """
    at: dict[str | None, list[Task]] = {}
    for number, group in enumerate(groups):
        anchor = reached[number - ahead] if ahead is not None and number >= ahead else None
        after = () if anchor is None else (anchor,)
        at.setdefault(anchor, []).extend(replace(gather, after=after) for gather in group.gathers)
    yield from at.get(None, [])
    for task in tasks:
        yield task
        yield from at.get(task.name, [])


def shares_of(
    updates: Sequence[Task], tensors: Sequence[str], number: int, after: tuple[str, ...], context: Context
) -> Iterator[Task]:
    """Yield the share of each update that concerns `tensors`."""
    wanted = set(tensors)
    for task in updates:
        op: Update = task.op  # type: ignore[assignment]
        mine = tuple([name for name in op.parameters if name in wanted])
        if mine:
            name = f"{task.name}.g{number}"
            share = op.of(mine, sum(context.numel(tensor) for tensor in mine))
            yield replace(task, name=name, op=share, after=after, after_previous=(), lag=1)


def readers_of(context: Context) -> dict[str, tuple[int, str]]:
    """Return, for each parameter that forward reads, the first forward task that does and its place."""
    readers: dict[str, tuple[int, str]] = {}
    for place, (forward, reads) in enumerate(context.forward_reads):
        for tensor in reads:
            readers.setdefault(tensor, (place, forward))
    return readers


def first_reader(tensors: Sequence[str], readers: dict[str, tuple[int, str]]) -> str | None:
    """Return the first forward task that reads one of `tensors`; None where none does."""
    found = [readers[tensor] for tensor in tensors if tensor in readers]
    return min(found)[1] if found else None
