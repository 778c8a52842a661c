"""DeAR: reduce-scatter under backward, all-gather under the NEXT forward, each layer updated just before it is read.

Helps: communication as long as backward or longer. Does not: communication already hidden by backward; anything that
needs updated weights right after a step (evaluation, clipping by global norm, checkpoints) pays a flush. Lossless.
Source: Zhang et al., ICDCS 2023 (arXiv:2302.12445). Unlike the authors' code the all-gathers may run ahead without
limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from orch.plan import (
    AllGatherShards,
    AllReduce,
    Buffer,
    Collective,
    Plan,
    ReduceScatter,
    Step,
    Task,
    Update,
)
from orch.technique import Context, Form, Knobs, Slot, Technique, count, fusible_runs, quantity
from orch.units import Bytes
from techniques.schedules._late import Group, Half, first_reader, readers_of, shares_of, woven
from techniques.schedules.bucketed import fill


class Config(Knobs):
    """How layers are grouped, and how far all-gathers run ahead of the forward pass."""

    bucket: Bytes = quantity("25MiB", "neighbouring layers share a bucket while it serves less gradient", least=0.0)
    prefetch: int | None = count(
        None, "all-gathers under way before forward reaches their layers; none: no limit (1: the paper's code)", least=1
    )


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Split the collectives whose results the update reads; move their second half, decode and update to the next
    step.
    """
    sizes = {name: group.size for name, group in plan.groups.items()}
    halves = [_split(step, sizes, context, config) for step in plan.steps]
    if all(not half.late for half in halves):
        return plan
    # Step i finishes the work of the step before it, which in a plan of several steps is another list.
    return replace(plan, steps=tuple(woven(halves[i - 1], halves[i], config.prefetch) for i in range(plan.period)))


def _split(step: Step, sizes: Mapping[str, int], context: Context, config: Config) -> Half:
    step = step.by_wave()
    layers = _layers(step, context, config.bucket)
    step = step.fuse(list(_buckets(step, layers, context, config)))
    final = _final(step)
    if not final:
        return Half(list(step))
    names = {task.name for task in final}
    behind = _behind(step, names)
    early: list[Task] = []
    for task in step:
        if task.name in names:
            early.append(_scatter(task, sizes[task.group]))
        elif task.name not in behind:
            early.append(task)
    kept = {task.name for task in early}
    groups: dict[int, list[Task]] = {}
    for task in final:
        groups.setdefault(layers[task.op.tensors[0]], []).append(task)
    chains: dict[int, list[Task]] = {}
    for task in step:
        if task.name in behind and not isinstance(task.op, Update):
            chains.setdefault(layers[task.op.tensors[0]], []).append(task)
    updates = step.of(Update)
    readers = readers_of(context)
    half = Half(early)
    for number, layer in enumerate(sorted(groups)):
        sends = groups[layer]
        tensors = tuple(dict.fromkeys(tensor for send in sends for tensor in send.op.tensors))
        gathers = [_gather(send, sizes[send.group]) for send in sends]
        renamed = {send.name: gather.name for send, gather in zip(sends, gathers, strict=True)}
        finish = [_late(task, renamed, kept) for task in chains.get(layer, ())]
        # The chain is on one stream, so its last task has waited for the others; dense gradients have no chain.
        after = (*renamed.values(), *(task.name for task in finish[-1:]))
        finish += shares_of(updates, tensors, number, after, context)
        half.late.append(Group(gathers, finish, first_reader(tensors, readers)))
    return half


def _layers(step: Step, context: Context, bucket: float) -> dict[str, int]:
    """Return the number of the group of layers of each sent tensor, in forward order.

    Modules join a group while it holds less than `bucket` bytes of gradient with them; a module is never split, and a
    tied tensor belongs to the first module that reads it.
    """
    size: dict[str, float] = {}
    for task in step:
        if isinstance(task.op, Collective) and (tensors := task.op.tensors):
            share = context.gradient_bytes(task) / len(tensors)
            size.update(dict.fromkeys(tensors, share))
    owner: dict[str, int] = {}
    group, held = 0, 0.0
    read = {tensor for _, tensors in context.forward_reads for tensor in tensors}
    unread = tuple(tensor for tensor in size if tensor not in read)
    for tensors in (unread, *(tensors for _, tensors in context.forward_reads)):
        mine = [tensor for tensor in tensors if tensor in size and tensor not in owner]
        total = sum([size[tensor] for tensor in mine])
        if held and held + total >= bucket:
            group, held = group + 1, 0.0
        owner.update(dict.fromkeys(mine, group))
        held += total
    return owner


def _buckets(step: Step, layers: dict[str, int], context: Context, config: Config) -> Iterator[Sequence[Task]]:
    """Yield what shares a bucket: final sends by their group of layers, others (Power-SGD's first wave) by size."""
    final = {task.name for task in _final(step)}
    for run in fusible_runs(step):
        groups: dict[int, list[Task]] = {}
        for task in run:
            if task.name in final:
                groups.setdefault(layers[task.op.tensors[0]], []).append(task)
        yield from groups.values()
        others = [task for task in run if task.name not in final]
        begin = 0
        for end in (
            fill([context.gradient_bytes(task) for task in others], config.bucket, config.bucket) if others else []
        ):
            yield others[begin:end]
            begin = end


def _final(step: Step) -> list[Task]:
    """Return the all-reduces that no other collective waits for: their results go to the update."""
    feeds: set[str] = set()
    for task in reversed(step.tasks):
        if isinstance(task.op, Collective) or task.name in feeds:
            feeds.update(task.after)
    return [task for task in step if isinstance(task.op, AllReduce) and task.name not in feeds]


def _behind(step: Step, names: set[str]) -> set[str]:
    """Return the tasks that wait, directly or not, for one of `names`."""
    reached = set(names)
    for task in step:
        if task.after and not reached.isdisjoint(task.after):
            reached.add(task.name)
    return reached - names


def _suffix(task: Task) -> str:
    return task.name.removeprefix("all_reduce")


def _scatter(task: Task, ranks: int) -> Task:
    name = f"reduce_scatter{_suffix(task)}"
    return replace(task, name=name, op=ReduceScatter(_padded(task, name, ranks)))


def _gather(task: Task, ranks: int) -> Task:
    scatter = f"reduce_scatter{_suffix(task)}"
    op = AllGatherShards(_padded(task, scatter, ranks))
    return Task(f"all_gather{_suffix(task)}", op, task.stream, (), (scatter,), task.role, task.group, lag=1)


def _padded(task: Task, name: str, ranks: int) -> Buffer:
    op: Collective = task.op  # type: ignore[assignment]
    return replace(op.buffer, name=name, pad_to=ranks)


def _late(task: Task, renamed: dict[str, str], kept: set[str]) -> Task:
    """Return `task` moved behind the step's end: what it waits for is late too, or belongs to the previous list."""
    after = tuple(renamed.get(name, name) for name in task.after if name not in kept)
    return replace(task, after=after, after_previous=tuple(name for name in task.after if name in kept), lag=1)


technique = Technique(
    name="dear",
    slot=Slot.SCHEDULE,
    rewrite=rewrite,
    source="arXiv:2302.12445",
    lossless=True,
    config=Config,
    needs=frozenset({Form.DENSE, Form.ADDABLE}),
)
