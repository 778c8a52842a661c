"""The step plan: tasks, and for each stream the order of its tasks. Plain frozen data.

One rule gives a plan its meaning, and both executors obey it: a task starts when the task before it on its stream has
ended and all its predecessors have ended. A step is ONE list of tasks in topological order; the subsequence of a stream
is that stream's order. A plan repeats its steps: step i of training runs `steps[i % period]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

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

    def waves(self) -> tuple[tuple[Task, ...], ...]:
        """Return the collectives in launch order, cut where one depends on an earlier one of the same wave.

        Only tasks of one wave and of one kind, role and group may be fused: fusing across would make a task its own
        predecessor.
        """
        first_wave: dict[str, int] = {}
        waves: list[list[Task]] = []
        for task in self.tasks:
            depth = max((first_wave[name] for name in task.after if name in first_wave), default=0)
            if isinstance(task.op, Collective) and not isinstance(task.op, Aggregate):
                while len(waves) <= depth:
                    waves.append([])
                waves[depth].append(task)
                depth += 1
            first_wave[task.name] = depth
        return tuple(tuple(wave) for wave in waves)

    def replace(self, changes: Mapping[str, Sequence[Task]]) -> Step:
        """Return the step with each named task replaced by a sequence; dependents wait for the last one of it."""
        renamed = {name: new[-1].name for name, new in changes.items() if new and new[-1].name != name}
        result: list[Task] = []
        for task in self.tasks:
            result.extend(_renamed(new, renamed) for new in changes.get(task.name, (task,)))
        return Step(tuple(result))

    def fuse(self, buckets: Sequence[Sequence[Task]]) -> Step:
        """Return the step with each bucket of collectives joined into one, standing where its last member stood.

        Buckets are numbered in launch order. A bucket of one is renamed too, so that every plan names buckets alike.
        """
        bucket_of: dict[str, int] = {}
        merged: dict[int, Task] = {}
        for index, members in enumerate(buckets):
            merged[index] = _fused(members, self._bucket_name(members[0], index))
            bucket_of.update((task.name, index) for task in members)
        renamed = {name: merged[index].name for name, index in bucket_of.items()}
        last = {members[-1].name: index for index, members in enumerate(buckets)}
        result = [
            _renamed(merged[last[task.name]] if task.name in last else task, renamed)
            for task in self.tasks
            if task.name in last or task.name not in bucket_of
        ]
        return Step(tuple(result))

    def _bucket_name(self, first: Task, index: int) -> str:
        return f"{first.name.split('.')[0]}.b{index}"


def _fused(members: Sequence[Task], name: str) -> Task:
    first = members[0]
    ops = [task.op for task in members]
    assert all(isinstance(op, Collective) for op in ops)
    op = ops[0].fuse(tuple(ops[1:]), name)  # type: ignore[attr-defined]
    after = tuple(dict.fromkeys(pred for task in members for pred in task.after))
    previous = tuple(dict.fromkeys(pred for task in members for pred in task.after_previous))
    return replace(first, name=name, op=op, after=after, after_previous=previous)


def _renamed(task: Task, names: Mapping[str, str]) -> Task:
    if not any(name in names for name in task.after) and not any(name in names for name in task.after_previous):
        return task
    after = tuple(dict.fromkeys(names.get(name, name) for name in task.after))
    previous = tuple(dict.fromkeys(names.get(name, name) for name in task.after_previous))
    return replace(task, after=after, after_previous=previous)


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
