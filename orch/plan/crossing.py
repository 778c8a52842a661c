"""One way through a mixture-of-experts layer, as schedules see it: a chain of stages that can be cut into chunks.

A stage is what every chunk goes through: dispatch, (gather,) expert, (scatter,) combine; backward from the other end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from orch.plan.experts import AllToAll, Expert, ExpertBackward, Rows
from orch.plan.plan import Plan, Step, Task


@dataclass(frozen=True)
class Crossing:
    """The stages of one crossing, uncut, in the order in which rows pass them. `counts` is no stage: it comes before."""

    module: str
    backward: bool
    stages: tuple[Task, ...]

    @property
    def expert(self) -> Task:
        """The stage that computes."""
        return next(task for task in self.stages if isinstance(task.op, Expert | ExpertBackward))

    @property
    def positions(self) -> int:
        """How many positions can be cut."""
        op = self.expert.op
        assert isinstance(op, Expert | ExpertBackward)
        return op.positions

    def bounds(self, degree: int) -> list[tuple[int, int]]:
        """Return the positions of `degree` chunks, in order; sizes differ by at most one."""
        total = self.positions
        cuts = [total * number // degree for number in range(degree + 1)]
        return list(pairwise(cuts))

    def cut(self, degree: int) -> list[list[Task]]:
        """Return, per stage, its tasks for `degree` chunks; each waits for its own chunk in the stage before it.

        The first stage waits for what the uncut one waited for.
        """
        if degree == 1:
            return [[task] for task in self.stages]
        bounds = self.bounds(degree)
        result: list[list[Task]] = []
        for place, task in enumerate(self.stages):
            chunks = []
            for number, (begin, end) in enumerate(bounds):
                name = f"{task.name}.c{number}"
                after = task.after if place == 0 else (result[-1][number].name,)
                op = task.op
                if isinstance(op, Rows):
                    cut = replace(task, name=name, op=op.cut(begin, end, name=name), after=after)
                else:
                    assert isinstance(op, Expert | ExpertBackward)
                    cut = replace(task, name=name, op=op.cut(begin, end, last=number == degree - 1), after=after)
                chunks.append(cut)
            result.append(chunks)
        return result


COUNTS = "counts"
"""The part of a `Rows` that tells ranks how many rows they will get; it is never cut."""


def crossings(step: Step) -> Iterator[Crossing]:
    """Yield the crossings of a step that nobody has cut yet, in order."""
    open_stages: dict[str, list[Task]] = {}
    for task in step:
        op = task.op
        if isinstance(op, Rows) and op.part == COUNTS:
            continue
        if isinstance(op, Rows | Expert | ExpertBackward):
            open_stages.setdefault(f"{op.module}|{_backward(task)}", []).append(task)
    for key, stages in open_stages.items():
        module, _, backward = key.partition("|")
        if sum(isinstance(task.op, Expert | ExpertBackward) for task in stages) == 1:
            yield Crossing(module, backward == "True", tuple(stages))


def _backward(task: Task) -> bool:
    op = task.op
    return isinstance(op, ExpertBackward) or (isinstance(op, Rows) and op.part.endswith("_backward"))


def cells(step: Step, module: str) -> tuple[tuple[int, int], ...]:
    """Return the positions of layer `module` cut wherever a chunk of its forward or backward begins: what a worker must
    know of the rows it gets, as forward and backward may be cut differently.
    """
    bounds: set[int] = set()
    for task in step:
        op = task.op
        if isinstance(op, Expert | ExpertBackward) and op.module == module:
            bounds |= {op.begin, op.end}
    return tuple(pairwise(sorted(bounds)))


def recut(step: Step, cuts: Mapping[str, Sequence[Task]]) -> Step:
    """Return the step with each named stage replaced by its chunks; what waited for a stage waits for its last chunk.

    The chunks of a stage stand together, so a stream takes all of one stage before any of the next. Counts are told for
    every cell that this makes.
    """
    step = step.replace(cuts)
    told: dict[str, list[Task]] = {}
    for task in step:
        op = task.op
        if isinstance(op, AllToAll) and op.part == COUNTS:
            (whole,) = op.buffer.segments
            numel = whole.numel // op.positions * len(cells(step, op.module))
            buffer = Rows.buffer_of(task.name, numel, whole.dtype)
            told[task.name] = [
                replace(task, op=replace(op, buffer=buffer, positions=numel // (whole.numel // op.positions)))
            ]
    return step.replace(told) if told else step


def cut_crossings(plan: Plan, degree_of: Callable[[Crossing], int]) -> Plan:
    """Return the plan with every crossing of a mixture-of-experts layer cut into `degree_of(crossing)` equal chunks.

    A degree larger than the positions there are makes as many chunks as there are positions.
    """

    def change(step: Step) -> Step:
        cuts: dict[str, Sequence[Task]] = {}
        for crossing in crossings(step):
            degree = min(degree_of(crossing), crossing.positions)
            if degree > 1:
                cuts.update(
                    (stage.name, chunks) for stage, chunks in zip(crossing.stages, crossing.cut(degree), strict=True)
                )
        return recut(step, cuts) if cuts else step

    return plan.each_step(change)
