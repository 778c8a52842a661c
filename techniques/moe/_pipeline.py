"""What a cut crossing takes: chunks on streams that take one task at a time, and PipeMoE's closed form of it.

Times in seconds. Stages are cut into `degree` chunks; each stream works its stages off one after another, all chunks of a
stage before any of the next, as `orch.plan.recut` lays them out, or in an order that a schedule of its own lays out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import product
from typing import Any

from orch.cluster.curves import larger
from orch.plan import NET, Crossing, Plan, Rows, Step, Task
from orch.technique import Context

INTRA = "net.intra"
# What runs in which order: stage and chunk, by number.
Order = Sequence[tuple[int, int]]


def breadth_first(stages: int, chunks: int) -> list[tuple[int, int]]:
    """Return all chunks of a stage before any of the next."""
    return [(stage, chunk) for stage in range(stages) for chunk in range(chunks)]


def makespan(
    stages: Sequence[Sequence[float]],
    streams: Sequence[str],
    before: Sequence[Sequence[int]] | None = None,
    order: Order | None = None,
) -> float:
    """Return when the last chunk has left; `stages[s][c]` are seconds, `streams[s]` who takes them, in `order`.

    A chunk's stage waits for the same chunk in the stages `before[s]`, by default in the one before it.
    """
    if before is None:
        before = [(), *((stage,) for stage in range(len(stages) - 1))]
    free = dict.fromkeys(streams, 0.0)
    ends: dict[tuple[int, int], float] = {}
    for stage, chunk in breadth_first(len(stages), len(stages[0])) if order is None else order:
        start = free[streams[stage]]
        for other in before[stage]:
            start = larger(start, ends[other, chunk])
        free[streams[stage]] = ends[stage, chunk] = start + stages[stage][chunk]
    return reduce(larger, ends.values())


def closed_form(exchange_s: float, expert_s: float, degree: int) -> float:
    """Return T(r) = max(2 r t_d, 2 t_d + r t_e) for chunk times t_d (each exchange) and t_e (expert): dispatches, then
    combines on one stream, experts on another.

    The repository solves the cases of this maximum apart; together they are exact for every r (derived: pipemoe brief,
    section 4.1).
    """
    longer: float = larger(2 * degree * exchange_s, 2 * exchange_s + degree * expert_s)
    return longer


class Costs:
    """What the chunks of one crossing cost, whatever the degree; chunks of equal size are asked for once."""

    def __init__(self, plan: Plan, context: Context, crossing: Crossing) -> None:
        self.crossing = crossing
        self.streams = [task.stream for task in crossing.stages]
        self.positions = crossing.positions
        self._cluster = context.cluster
        self._spans = [context.span(plan, task) for task in crossing.stages]
        self._known: dict[tuple[int, int], float] = {}

    def seconds(self, stage: int, size: int) -> Any:
        """Return what a chunk of `size` positions takes in a stage."""
        if (stage, size) not in self._known:
            self._known[stage, size] = self._asked(stage, size)
        return self._known[stage, size]

    def _asked(self, stage: int, size: Any) -> Any:
        task, op = self.crossing.stages[stage], self.crossing.stages[stage].op
        if isinstance(size, int) and size == self.positions:
            return op.cost_s(self._cluster, self._spans[stage])
        cut = op.cut(0, size, name=task.name) if isinstance(op, Rows) else op.cut(0, size, last=True)  # type: ignore[attr-defined]
        return cut.cost_s(self._cluster, self._spans[stage])

    def look_up(self, degrees: Sequence[int]) -> None:
        """Ask for the costs of all chunks of `degrees` at once: arrays of sizes cost as much as one size."""
        import numpy as np

        sizes = sorted({end - begin for degree in degrees for begin, end in self.crossing.bounds(degree)})
        for stage in range(len(self.streams)):
            found = self._asked(stage, np.array(sizes))
            if np.shape(found) == (len(sizes),):
                self._known.update(zip([(stage, size) for size in sizes], found.tolist(), strict=True))

    def times(self, degree: int) -> list[list[float]]:
        """Return the seconds of every stage's chunks."""
        sizes = [end - begin for begin, end in self.crossing.bounds(degree)]
        found = []
        for stage in range(len(self.streams)):
            known = {size: self.seconds(stage, size) for size in set(sizes)}
            found.append([known[size] for size in sizes])
        return found

    def makespan(self, degree: int, order: Order | None = None) -> float:
        """Return how long the crossing takes in `degree` chunks.

        By the closed form where rows are exchanged, computed and exchanged back in equal chunks; else by walking the stages.
        """
        times = self.times(degree)
        expert = self.crossing.stages.index(self.crossing.expert)
        if order is None and len(times) == 3 and expert == 1 and self.positions % degree == 0:
            first, middle, last = (stage[0] for stage in times)
            if first is last or first == last:
                return closed_form(first, middle, degree)
        return makespan(times, self.streams, self.crossing.before, order)


def seconds(plan: Plan, context: Context, task: Task) -> float:
    """Return what a task of the plan costs."""
    return task.op.cost_s(context.cluster, context.span(plan, task))


def laid(step: Step, blocks: Mapping[str, list[str]]) -> Step:
    """Return the step with the tasks of each block together, in its order, where the first of them stood.

    What stands among them in the list waits for some or for none, and none of them waits for it: gradients on their way.
    """
    by_name = {task.name: task for task in step}
    done: set[str] = set()
    result: list[Task] = []
    for task in step:
        if task.name not in blocks:
            result.append(task)
        elif task.name not in done:
            names = blocks[task.name]
            result += [by_name[name] for name in names]
            done.update(names)
    return Step(tuple(result))


def one_network(plan: Plan) -> Plan:
    """Return the plan with everything that travels on one stream: what stays inside a node waits for what does not."""
    return plan.each_step(
        lambda step: Step(tuple(replace(task, stream=NET) if task.stream == INTRA else task for task in step))
    )


def degrees(config: Any) -> Iterator[Any]:
    """Yield a config with each pair of forward and backward degrees that one with `degree`, `degree_backward` and `most`
    leaves open.
    """
    options = [
        range(1, config.most + 1) if asked is None else [asked] for asked in (config.degree, config.degree_backward)
    ]
    for there, back in product(*options):
        yield config.model_copy(update={"degree": there, "degree_backward": back})


def best_degree(plan: Plan, context: Context, crossing: Crossing, most: int) -> int:
    """Return the degree up to `most` with the least makespan; the smallest on ties. Chunks differ by a position at most."""
    if len(crossing.stages) == 1:
        return 1
    costs = Costs(plan, context, crossing)
    return min(range(1, min(crossing.positions, most) + 1), key=lambda degree: (costs.makespan(degree), degree))
