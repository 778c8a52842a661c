"""ByteScheduler: gradients cut into parts, of which those that the next forward needs first overtake the others.

Helps: large tensors late in the model over slow links, where the next forward starts while they still travel. Does not:
many small tensors, each of which pays its start-up; anything that needs updated weights right after a step pays a flush,
as with DeAR. Lossless.
Source: Peng et al., SOSP 2019 (recollection), and the code of its scheduler (bytedance/byteps, repository). It decides while
it runs; here the same rule is worked out from when gradients exist and what parts cost, so that all ranks agree.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from orch.plan import ITEM_SIZE, AllGatherShards, AllReduce, Buffer, Fixed, Plan, ReduceScatter, Segment, Task, Update
from orch.technique import Context, Form, Knobs, Slot, Technique, choice, quantity
from orch.units import Bytes, Seconds
from techniques.schedules._late import Group, Half, readers_of, shares_of, woven


class Config(Knobs):
    """How large parts are, how far ahead they are handed over, and who adds them up."""

    partition: Bytes = quantity("4MB", "a gradient larger than this is cut into parts of this size", least=1.0)
    credit: Bytes = quantity(
        "16MB",
        "parts are handed over while less than this is under way; what is handed over is not overtaken",
        least=1.0,
    )
    through: Literal["all-reduce", "parameter-server"] = choice(
        "all-reduce", "an all-reduce a part, or a push to the rank that serves it and a pull back"
    )
    engine: Seconds = quantity(
        "0s",
        "what an engine of its own adds before the forward of each layer; ours adds nothing, published ones do",
        least=0.0,
    )


@dataclass(frozen=True)
class _Part:
    """What carries one part, in order, and when it counts as ready; a small `urgency` goes first."""

    tasks: tuple[Task, ...]
    ready_s: float
    urgency: int
    nbytes: int
    seconds: float


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Cut the gradients, put their parts in the order in which they would be sent, and update layer by layer."""
    halves = [_half(plan, index, context, config) for index in range(plan.period)]
    if all(not half.late for half in halves):
        return plan
    return replace(plan, steps=tuple(woven(halves[index - 1], halves[index]) for index in range(plan.period)))


def turns(parts: Sequence[_Part], credit: float) -> list[int]:
    """Return the numbers of `parts` in the order in which they are handed over.

    Whenever less than `credit` bytes are under way, the most urgent part that exists is handed over; parts under way are
    carried one after the other, in that order.
    """
    coming = deque(sorted(range(len(parts)), key=lambda number: (parts[number].ready_s, number)))
    waiting: list[tuple[int, int]] = []
    under_way: deque[tuple[float, int]] = deque()
    order: list[int] = []
    now = free = 0.0
    left = credit
    while coming or waiting:
        while under_way and under_way[0][0] <= now:
            left += under_way.popleft()[1]
        while coming and parts[coming[0]].ready_s <= now:
            number = coming.popleft()
            heapq.heappush(waiting, (parts[number].urgency, number))
        if waiting and left > 0:
            _, number = heapq.heappop(waiting)
            order.append(number)
            free = max(free, now) + parts[number].seconds
            under_way.append((free, parts[number].nbytes))
            left -= parts[number].nbytes
        else:
            events = [parts[coming[0]].ready_s] if coming else []
            now = min([*events, *(end for end, _ in list(under_way)[:1])])
    return order


def _half(plan: Plan, index: int, context: Context, config: Config) -> Half:
    step = plan.steps[index].by_wave()
    sends = [task for task in step.of(AllReduce) if task.op.tensors]
    names = {task.name for task in sends}
    updates = [task for task in step.of(Update) if not names.isdisjoint(task.after)]
    if not updates:
        return Half(list(step))
    places = {tensor: place for tensor, (place, _) in readers_of(context).items()}
    parts: list[_Part] = []
    for send, ready_s in zip(sends, context.ready_s(plan, index, sends), strict=True):
        # What no forward reads is updated before the first one: it is needed at once.
        urgency = min(places.get(tensor, -1) for tensor in send.op.tensors)
        cost_s = context.collective_s(plan, send)
        for tasks in _cut(send, plan.groups[send.group].size, config):
            nbytes = tasks[0].op.nbytes
            parts.append(_Part(tasks, ready_s, urgency, nbytes, cost_s(nbytes)))
    ordered = [parts[number].tasks for number in turns(parts, config.credit)]
    late = {task.name for task in updates}
    kept = [task for task in step if task.name not in names and task.name not in late]
    return Half(list(_with_parts(kept, ordered)), _updated(updates, ordered, context, config))


def _cut(send: Task, ranks: int, config: Config) -> Iterator[tuple[Task, ...]]:
    """Yield the tasks that carry each part of a send, first part first."""
    op: AllReduce = send.op  # type: ignore[assignment]
    whole = op.buffer.segments[0]
    most = max(1, int(config.partition) // ITEM_SIZE[whole.dtype])
    if len(op.buffer.segments) > 1 or not whole.is_gradient or whole.numel <= most:
        yield _carried(send, send.name, op.buffer.segments, ranks, config)
        return
    for begin in range(0, whole.numel, most):
        first, numel = (whole.begin or 0) + begin, min(most, whole.numel - begin)
        part = replace(whole, name=f"{whole.tensor}@{first}", numel=numel, begin=first)
        yield _carried(send, f"all_reduce.{part.name}", (part,), ranks, config)


def _carried(send: Task, name: str, segments: tuple[Segment, ...], ranks: int, config: Config) -> tuple[Task, ...]:
    if config.through == "all-reduce" or not sum(segment.numel for segment in segments):
        return (replace(send, name=name, op=AllReduce(Buffer(name, segments))),)
    suffix = name.removeprefix("all_reduce")
    buffer = Buffer(f"reduce_scatter{suffix}", segments, pad_to=ranks)
    push = replace(send, name=buffer.name, op=ReduceScatter(buffer))
    pull = replace(send, name=f"all_gather{suffix}", op=AllGatherShards(buffer), after=(push.name,), after_previous=())
    return push, pull


def _with_parts(tasks: Sequence[Task], ordered: Sequence[tuple[Task, ...]]) -> Iterator[Task]:
    """Yield `tasks` with the parts in their order, each as soon as what it waits for stands before it."""
    left = deque(ordered)
    missing = {name for carried in ordered for name in carried[0].after}
    for task in tasks:
        yield task
        missing.discard(task.name)
        while left and missing.isdisjoint(left[0][0].after):
            yield from left.popleft()


def _updated(
    updates: Sequence[Task], ordered: Sequence[tuple[Task, ...]], context: Context, config: Config
) -> list[Group]:
    """Return, in forward order, each layer's share of the updates, for the step after the one that sends."""
    readers = readers_of(context)
    layers: dict[tuple[int, str | None], list[str]] = {}
    for tensor in dict.fromkeys(name for task in updates for name in task.op.tensors):
        layers.setdefault(readers.get(tensor, (-1, None)), []).append(tensor)
    # On one stream and in one role the last part has waited for those before it.
    last: dict[tuple[int, str | None], dict[tuple[str, str], str]] = {}
    for *_, task in ordered:
        for tensor in task.op.tensors:
            last.setdefault(readers.get(tensor, (-1, None)), {})[task.stream, task.role] = task.name
    groups = []
    for number, (reader, tensors) in enumerate(sorted(layers.items(), key=lambda layer: layer[0][0])):
        behind = tuple(last.get(reader, {}).values())
        finish = [replace(task, after_previous=behind) for task in shares_of(updates, tensors, number, (), context)]
        if config.engine:
            finish.append(Task(f"engine.g{number}", Fixed("engine", config.engine), lag=1))
        groups.append(Group([], finish, reader[1]))
    return groups


def planned_only(config: Config) -> str:
    """Return why a stack with these knobs cannot be run: nothing here takes an engine's time."""
    return "the time of another engine is no part of a run" if config.engine else ""


technique = Technique(
    name="bytescheduler",
    slot=Slot.SCHEDULE,
    rewrite=rewrite,
    source="ByteScheduler, SOSP 2019",
    lossless=True,
    config=Config,
    needs=frozenset({Form.DENSE}),
    planned_only=planned_only,
)
