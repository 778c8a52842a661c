"""The step plan: tasks, and for each stream the order of its tasks. Plain frozen data.

One rule gives a plan its meaning, and both executors obey it: a task starts when the task before it on its stream has
ended and all its predecessors have ended. A step is ONE list of tasks in topological order; the subsequence of a stream
is that stream's order. A plan repeats its steps: step i of training runs `steps[i % period]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from orch.plan.buffers import Buffer, Group
from orch.plan.operations import Aggregate, Collective, Operation, Update

COMPUTE = "compute"
NET = "net.inter"


@dataclass(frozen=True, slots=True)
class Task:
    """An operation on a stream, with its predecessors.

    `after` names tasks of the same step list, `after_previous` tasks of the list before it. `lag` 1 marks a task that
    finishes the work of the previous step (DeAR's all-gather): the first step has none to finish, a flush runs it
    early. `role` names the ranks that run it, `group` the ranks that take part in its collective.
    """

    name: str
    op: Operation
    stream: str = COMPUTE
    after: tuple[str, ...] = ()
    after_previous: tuple[str, ...] = ()
    role: str = "all"
    group: str = "world"
    lag: int = 0


@dataclass(frozen=True)
class Step:
    """The tasks of one step, in topological order. Every method returns a new step."""

    tasks: tuple[Task, ...]

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def stream(self, name: str) -> tuple[Task, ...]:
        """Return the tasks of stream `name`, in its order."""
        return tuple(task for task in self.tasks if task.stream == name)

    def of(self, kind: type[Operation]) -> tuple[Task, ...]:
        """Return the tasks whose operation is a `kind`, in order."""
        return tuple(task for task in self.tasks if isinstance(task.op, kind))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """For each task, how many collectives of gradients its longest chain of predecessors holds."""
        after_it: dict[str, int] = {}
        result: list[int] = []
        for task in self.tasks:
            depth = 0
            if after_it:
                for name in task.after:
                    if name in after_it and after_it[name] > depth:
                        depth = after_it[name]
            result.append(depth)
            if isinstance(task.op, Collective) and task.op.tensors:
                after_it[task.name] = depth + 1
            elif depth:
                after_it[task.name] = depth
        return tuple(result)

    def waves(self) -> tuple[tuple[Task, ...], ...]:
        """Return the collectives of gradients in launch order, cut where one depends on an earlier one of the same wave.

        Only tasks of one wave and of one kind, role and group may be fused: fusing across would make a task its own
        predecessor.
        """
        waves: list[list[Task]] = []
        for task, depth in zip(self.tasks, self.depths, strict=True):
            if isinstance(task.op, Collective) and task.op.tensors and not isinstance(task.op, Aggregate):
                while len(waves) <= depth:
                    waves.append([])
                waves[depth].append(task)
        return tuple(tuple(wave) for wave in waves)

    def by_wave(self) -> Step:
        """Return the step with tasks ordered by depth, else as they stood.

        What needs nothing from the network stands first, so the compute stream never waits for a collective while it
        could go on with backward; and what follows the first wave of collectives stands before what follows the second.
        """
        depths = self.depths
        order = sorted(range(len(depths)), key=depths.__getitem__)
        if all(index == place for place, index in enumerate(order)):
            return self
        return Step(tuple(self.tasks[index] for index in order))

    def replace(self, changes: Mapping[str, Sequence[Task]]) -> Step:
        """Return the step with each named task replaced by a sequence; dependents wait for the last one of it.

        Within a sequence the replaced name means the member that still has it.
        """
        renamed = {name: new[-1].name for name, new in changes.items() if new and new[-1].name != name}
        result: list[Task] = []
        for task in self.tasks:
            result.extend(_renamed(new, renamed, keep=task.name) for new in changes.get(task.name, (task,)))
        return Step(tuple(result))

    def fuse(self, buckets: Sequence[Sequence[Task]]) -> Step:
        """Return the step with each bucket of collectives joined into one, standing where its last member stood.

        Buckets are numbered in the order in which their last members stand: launch order. A bucket of one is renamed
        too, so that every plan names buckets alike.
        """
        place = {task.name: position for position, task in enumerate(self.tasks)}
        buckets = sorted(buckets, key=lambda members: place[members[-1].name])
        renamed: dict[str, str] = {}
        merged: dict[str, Task] = {}  # by the name of the last member
        for index, members in enumerate(buckets):
            name = f"{members[0].name.split('.')[0]}.b{index}"
            merged[members[-1].name] = self._fused(members, name, place)
            renamed.update((task.name, name) for task in members)
        result = []
        for task in self.tasks:
            if task.name not in renamed:
                result.append(_renamed(task, renamed))
            elif task.name in merged:
                result.append(_renamed(merged[task.name], renamed))
        return Step(tuple(result))

    def _fused(self, members: Sequence[Task], name: str, place: Mapping[str, int]) -> Task:
        first = members[0]
        ops: list[Collective] = [task.op for task in members]  # type: ignore[misc]
        op = ops[0].fuse(tuple(ops[1:]), name)
        # On one stream and in one role the last predecessor has waited for the others already.
        last: dict[tuple[str, str], str] = {}
        for pred in sorted({pred for task in members for pred in task.after}, key=place.__getitem__):
            before = self.tasks[place[pred]]
            last[before.stream, before.role] = pred
        previous = tuple(dict.fromkeys(pred for task in members for pred in task.after_previous))
        return Task(name, op, first.stream, tuple(last.values()), previous, first.role, first.group, first.lag)


def _renamed(task: Task, names: Mapping[str, str], keep: str = "") -> Task:
    if not task.after and not task.after_previous:
        return task
    if names.keys().isdisjoint(task.after) and names.keys().isdisjoint(task.after_previous):
        return task
    after, previous = (
        tuple(dict.fromkeys(name if name == keep else names.get(name, name) for name in names_of))
        for names_of in (task.after, task.after_previous)
    )
    return Task(task.name, task.op, task.stream, after, previous, task.role, task.group, task.lag)


@dataclass(frozen=True)
class Plan:
    """The steps that training repeats, over named roles (sets of ranks) and groups (ranks of collectives)."""

    name: str
    world_size: int
    steps: tuple[Step, ...]
    roles: Mapping[str, range | tuple[int, ...]] = field(default_factory=dict)
    groups: Mapping[str, Group] = field(default_factory=dict)

    @staticmethod
    def of(name: str, world_size: int, tasks: Iterable[Task]) -> Plan:
        """Return a plan of one repeated step in which every rank does the same."""
        world = range(world_size)
        return Plan(name, world_size, (Step(tuple(tasks)),), {"all": world}, {"world": Group("world", (world,))})

    @property
    def period(self) -> int:
        """Steps after which the plan repeats."""
        return len(self.steps)

    def each_step(self, change: Callable[[Step], Step]) -> Plan:
        """Return the plan with `change` applied to every step; the plan itself when nothing changed."""
        steps = tuple(change(step) for step in self.steps)
        return self if steps == self.steps else replace(self, steps=steps)

    def buffers(self) -> dict[str, Buffer]:
        """Return every buffer by name; a name stands for one layout within a plan."""
        return {
            op.buffer.name: op.buffer for step in self.steps for task in step if isinstance(op := task.op, Collective)
        }

    def updates(self) -> tuple[Task, ...]:
        """Return the update tasks of the first step of the period."""
        return self.steps[0].of(Update)
