"""One way through a mixture-of-experts layer, as schedules see it: stages, each after some before it, to be cut into chunks.

A stage is what every chunk goes through: (pack,) dispatch, (unpack, gather,) expert, (scatter, pack,) combine(, unpack);
backward from the other end. Two stages may run side by side: the halves of an exchange on two networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from orch.plan.experts import AllToAll, Expert, ExpertBackward, RecodeRows, Rows
from orch.plan.packed import RowSizes
from orch.plan.plan import Plan, Step, Task

# What goes from rank to rank of those that share experts out.
EXCHANGED = (AllToAll, RowSizes)


@dataclass(frozen=True)
class Crossing:
    """The stages of one crossing, uncut, in the order in which rows pass them. Counts are no stage: they come before."""

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

    @property
    def before(self) -> tuple[tuple[int, ...], ...]:
        """The stages, by number, that each stage waits for."""
        places = {task.name: place for place, task in enumerate(self.stages)}
        return tuple(tuple(places[name] for name in task.after if name in places) for task in self.stages)

    def bounds(self, degree: int) -> list[tuple[int, int]]:
        """Return the positions of `degree` chunks, in order; sizes differ by at most one."""
        total = self.positions
        cuts = [total * number // degree for number in range(degree + 1)]
        return list(pairwise(cuts))

    def cut(self, degree: int) -> Sequence[Sequence[Task]]:
        """Return, per stage, its tasks for `degree` chunks; each waits for its own chunk in the stages before it, and for
        what the uncut one waited for besides. The same tasks whenever it is asked for.
        """
        if degree == 1:
            return [[task] for task in self.stages]
        try:
            return _kept(self, degree)
        except TypeError:  # sizes are arrays, which have no hash
            return _kept(_Same(self), degree)

    def _cut(self, degree: int) -> list[list[Task]]:
        bounds = self.bounds(degree)
        stages = {task.name for task in self.stages}
        result: list[list[Task]] = []
        for task in self.stages:
            chunks = []
            for number, (begin, end) in enumerate(bounds):
                name = f"{task.name}.c{number}"
                after = tuple([f"{other}.c{number}" if other in stages else other for other in task.after])
                op = task.op
                if isinstance(op, Rows):
                    cut: Rows | Expert | ExpertBackward | RecodeRows = op.cut(begin, end, name=name)
                else:
                    assert isinstance(op, Expert | ExpertBackward | RecodeRows)
                    cut = op.cut(begin, end, last=number == degree - 1)
                chunks.append(Task(name, cut, task.stream, after, task.after_previous, task.role, task.group, task.lag))
            result.append(chunks)
        return result

    def in_turns(self, turns: int, *, alone: bool) -> list[list[Task]]:
        """Return, per stage, its tasks for `turns` turns of ranks; `alone`: groups are single ranks, so that what is turn 0 of
        an exchange goes nowhere and is left out.
        """
        stages = {task.name: task for task in self.stages}
        result: list[list[Task]] = []
        for task in self.stages:
            chunks = []
            for turn in range(turns):
                name, op = f"{task.name}.t{turn}", task.op
                if alone and turn == 0 and isinstance(op, EXCHANGED):
                    continue
                after = tuple(dict.fromkeys(_of_turn(task, turn, stages, alone=alone)))
                if isinstance(op, EXCHANGED):
                    op = op.in_turn(turn, turns, name=name)
                else:
                    assert isinstance(op, Expert | ExpertBackward | RecodeRows)
                    op = replace(op, turn=turn, turns=turns)
                    if isinstance(op, ExpertBackward) and turn < turns - 1:
                        op = replace(op, ready=())
                chunks.append(replace(task, name=name, op=op, after=after))
            result.append(chunks)
        return result


class _Same:
    """A crossing that equals another where both have the very same stages, whose sizes may be arrays."""

    def __init__(self, crossing: Crossing) -> None:
        self.crossing = crossing
        self._ids = tuple([id(task) for task in crossing.stages])

    def __hash__(self) -> int:
        return hash(self._ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._ids == other._ids


# Those who choose degrees cut one crossing again and again, and layers of a grid have equal ones; what is kept holds its stages, so
# that no other gets their ids.
@lru_cache(maxsize=256)
def _kept(crossing: Crossing | _Same, degree: int) -> list[list[Task]]:
    return (crossing.crossing if isinstance(crossing, _Same) else crossing)._cut(degree)


def _of_turn(task: Task, turn: int, stages: Mapping[str, Task], *, alone: bool) -> Iterator[str]:
    """Yield what a stage waits for in one turn; for what an exchange that is left out waited for in its place."""
    for name in task.after:
        before = stages.get(name)
        if before is None:
            yield name
        elif alone and turn == 0 and isinstance(before.op, EXCHANGED):
            yield from _of_turn(before, turn, stages, alone=alone)
        else:
            yield f"{name}.t{turn}"


COUNTS, RELAYED = "counts", "relayed_counts"
"""Parts of a `Rows` that tell ranks how many rows they will get, or pass on; they are never cut."""
_TOLD = (COUNTS, RELAYED)


def crossings(step: Step) -> Iterator[Crossing]:
    """Yield the crossings of a step that nobody has cut yet, in order."""
    open_stages: dict[str, list[Task]] = {}
    for task in step:
        op = task.op
        if isinstance(op, Rows) and op.part in _TOLD:
            continue
        if isinstance(op, Rows | Expert | ExpertBackward | RecodeRows):
            open_stages.setdefault(f"{op.module}|{_backward(task)}", []).append(task)
    for key, stages in open_stages.items():
        module, _, backward = key.partition("|")
        if sum(isinstance(task.op, Expert | ExpertBackward) for task in stages) == 1:
            yield Crossing(module, backward == "True", tuple(stages))


def _backward(task: Task) -> bool:
    op = task.op
    return isinstance(op, ExpertBackward) or (isinstance(op, Rows | RecodeRows) and op.part.endswith("_backward"))


def cells(step: Step, module: str) -> tuple[tuple[int, int], ...]:
    """Return the positions of layer `module` cut wherever a chunk of its forward or backward begins: what a worker must
    know of the rows it gets, as forward and backward, and rows on their way back, may be cut differently.
    """
    bounds: set[int] = set()
    for task in step:
        op = task.op
        if isinstance(op, AllToAll) and op.part in _TOLD:
            continue
        if isinstance(op, AllToAll | Expert | ExpertBackward) and op.module == module:
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
        if isinstance(op, AllToAll) and op.part in _TOLD:
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
