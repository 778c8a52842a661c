"""A step of a plan as one rank runs it: names resolved to numbers, once, so that hooks only compare integers.

Nothing here knows torch. The compute stream is driven by the model itself (hooks), so its tasks are kept by their place
on that stream; net streams are walked in plan order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from orch.errors import RunError
from orch.plan import (
    COMPUTE,
    AllToAll,
    Attend,
    Backward,
    Collective,
    Forward,
    GatherRows,
    Meet,
    Plan,
    RecodeRows,
    Rows,
    RowSizes,
    ShareExpert,
    Step,
    SumRows,
    Task,
    cells,
)
from orch.workload.layout import TENSOR

# What moves the compute stream past a task: the model's forward, its backward, the engine running an operation, or the
# engine running one for a mixture of experts that has handed over to it.
FORWARD, BACKWARD, OPERATION, LAYER = range(4)
# The name under which all tasks of a chain of layers are walked, forward or backward.
CHAIN = "chain"
Mark = tuple[int, int]  # (net stream, place on it)


@dataclass
class Send:
    """A task on a net stream: what must have happened before it may be launched."""

    index: int
    task: Task
    op: Collective
    stream: int
    place: int
    # Compute tasks that must have ended: the first `need` of the stream.
    need: int = 0
    waits: tuple[Mark, ...] = ()
    waits_previous: tuple[str, ...] = ()


@dataclass
class Stage:
    """A task on the compute stream, and the places on net streams that must have ended before it."""

    index: int
    task: Task
    kind: int
    count: int = 0
    waits: tuple[Mark, ...] = ()
    waits_previous: tuple[str, ...] = ()


@dataclass
class Program:
    """One step of the period on one rank.

    `forward` maps a module, `backward` a tensor to its place on the compute stream; `last_backward` is the place after
    the last gradient; `lagging` lists, in plan order, the tasks that finish the previous step, and `last_lagging` is
    the place after the last of them; `looks_back` tells whether any task waits for one of the previous step.
    """

    step: Step
    stages: list[Stage] = field(default_factory=list)
    nets: list[list[Send]] = field(default_factory=list)
    forward: dict[str, int] = field(default_factory=dict)
    backward: dict[str, int] = field(default_factory=dict)
    last_backward: int = 0
    last_lagging: int = 0
    looks_back: bool = False
    # Of each mixture, by name and whether backward: the places on the compute stream from its first task to its last.
    crossings: dict[tuple[str, bool], tuple[int, int]] = field(default_factory=dict)
    cells: dict[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    lagging: list[Stage | Send] = field(default_factory=list)
    chained: bool = False


def compile_step(plan: Plan, index: int, rank: int) -> Program:
    """Return step `index` of the period as `rank` runs it.

    Raises RunError for a task on a stream that only simulation knows (host, copies), and for a task of the net that is
    no collective.
    """
    step = plan.steps[index]
    program = Program(step, chained=bool(step.of(Attend)))
    streams: dict[str, int] = {}
    places: dict[str, int] = {}
    marks: dict[str, Mark] = {}
    for number, task in enumerate(step.tasks):
        if rank not in plan.roles[task.role]:
            continue
        entry: Stage | Send
        if task.stream == COMPUTE:
            places[task.name] = len(program.stages)
            entry = _stage(program, number, task)
            program.stages.append(entry)
        else:
            stream = streams.setdefault(task.stream, len(streams))
            if stream == len(program.nets):
                program.nets.append([])
            marks[task.name] = (stream, len(program.nets[stream]))
            entry = _send(number, task, *marks[task.name])
            program.nets[stream].append(entry)
            entry.need = max((places[name] + 1 for name in task.after if name in places), default=0)
        entry.waits = _furthest([marks[name] for name in task.after if name in marks])
        entry.waits_previous = task.after_previous
        program.looks_back |= bool(task.after_previous)
        if task.lag:
            program.lagging.append(entry)
            program.last_lagging = len(program.stages)
    program.cells = {module: cells(step, module) for module, _ in program.crossings if not program.chained}
    return program


def _stage(program: Program, number: int, task: Task) -> Stage:
    place = len(program.stages)
    if task.op.in_layer:
        return _layer_stage(program, number, task, place)
    if isinstance(task.op, Forward):
        program.forward.setdefault(task.op.module, place)
        return Stage(number, task, FORWARD)
    if isinstance(task.op, Backward):
        program.backward.update((tensor, place) for tensor in task.op.ready)
        program.last_backward = place + 1
        return Stage(number, task, BACKWARD, count=len(task.op.ready))
    return Stage(number, task, OPERATION)


def _layer_stage(program: Program, number: int, task: Task, place: int) -> Stage:
    op = task.op
    backward = (
        op.kind.endswith("_backward")
        or (isinstance(op, RecodeRows) and op.part.endswith("_backward"))
        or (isinstance(op, Meet) and op.backward)
    )
    key = (CHAIN if program.chained else op.module, backward)  # type: ignore[attr-defined]
    first, _ = program.crossings.get(key, (place, place))
    if any(stage.kind in (FORWARD, BACKWARD) for stage in program.stages[first:]):
        message = f"task {task.name!r} stands apart from its crossing: the model computes in between"
        raise RunError(message, code="E618", hint="such plans can be simulated: orch plan")
    program.crossings[key] = (first, place + 1)
    if backward:
        program.last_backward = place + 1
    return Stage(number, task, LAYER, count=1)


def _send(number: int, task: Task, stream: int, place: int) -> Send:
    if not task.stream.startswith("net."):
        raise RunError(f"task {task.name!r} is on stream {task.stream!r}, which this engine does not drive", code="E618",
                       hint="such plans can be simulated: orch plan")  # fmt: skip
    if not isinstance(task.op, Collective):
        raise RunError(f"task {task.name!r} is on stream {task.stream!r} but is no collective", code="E618")
    runs = isinstance(task.op, AllToAll | RowSizes | ShareExpert) or (
        task.group == TENSOR and isinstance(task.op, SumRows | GatherRows)
    )
    if isinstance(task.op, Rows) and not runs:
        what = "what ranks that share a sample hold is given back in shares" if task.group == TENSOR else (
            "rows are gathered for experts that are cut into slices")  # fmt: skip
        hint = (
            "parallel.tokens=whole" if task.group == TENSOR else "with parm they go to all slices at once, which runs"
        )
        raise RunError(f"task {task.name!r}: {what}, which can only be simulated", code="E618", hint=hint)
    return Send(number, task, task.op, stream, place)


def _furthest(marks: list[Mark]) -> tuple[Mark, ...]:
    """One mark a stream is enough: whoever waits for a place waits for all before it."""
    furthest: dict[int, int] = {}
    for stream, place in marks:
        furthest[stream] = max(place, furthest.get(stream, 0))
    return tuple(furthest.items())
