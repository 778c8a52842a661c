"""The chains of a step, cut in every way that is asked for: what their chunks cost, and the plans that orders of them make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeVar

from orch.plan import (
    COUNTS,
    RELAYED,
    Attend,
    AttendBackward,
    Chain,
    Chained,
    Expert,
    ExpertBackward,
    Plan,
    Rows,
    RowSizes,
    Step,
    Task,
    chained,
)
from orch.technique import Context
from techniques.moe._chain import BACK, DENSE, EXPERT, OUT, SHORT, Key, Work, aligned, divisors
from techniques.moe._gaps import SLACKS, filled


def kind_of(chain: Chain, task: Task, place: int) -> str:
    """Return what a task is to a schedule."""
    op = task.op
    if isinstance(op, Attend | AttendBackward):
        return DENSE
    if isinstance(op, Expert | ExpertBackward):
        return EXPERT
    told = isinstance(op, RowSizes) or (isinstance(op, Rows) and op.part in (COUNTS, RELAYED))
    if isinstance(op, Rows) and not told and not chain.meets(task):
        expert = next(n for n, one in enumerate(chain.layers[0]) if isinstance(one.op, Expert | ExpertBackward))
        return OUT if place < expert else BACK
    return SHORT


class _Likeness:
    """A chain as far as its shape goes: chains alike have equal ones."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self._facts = (chain.backward, chain.units, chain.ordered, chain.parts, tuple(
            tuple((task.stream, type(task.op), getattr(task.op, "part", ""), task.name, task.after) for task in layer)
            for layer in chain.layers
        ))  # fmt: skip

    def __hash__(self) -> int:
        return hash(self._facts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Likeness) and self._facts == other._facts


@lru_cache(maxsize=512)
def _shape(likeness: _Likeness, dense: tuple[int, ...], mixed: tuple[int, ...]) -> Work:
    """Return a chain's work without seconds; chunks stand so that each comes behind those that it waits for."""
    chain = likeness.chain
    waits = chain.waits(dense, mixed)
    keys = tuple(chain.in_turn(dense, mixed))
    places = {key: number for number, key in enumerate(keys)}
    tasks = [chain.layers[number][place] for number, place, _ in keys]
    return Work(
        keys,
        tuple(kind_of(chain, task, key[1]) for task, key in zip(tasks, keys, strict=True)),
        (0.0,) * len(keys),
        tuple(task.stream for task in tasks),
        tuple(tuple(places[one] for one in waits[key]) for key in keys),
        chain.backward,
    )


Bounds = tuple[int, ...]


class Cut(NamedTuple):
    """How a step's chains are cut: the bounds of dense work forward and backward (`back`; some of forward's), those of mixtures,
    and in how many parts each chunk of a mixture crosses backward.
    """

    dense: Bounds
    mixed: Bounds
    back: Bounds
    parts: int = 1

    @staticmethod
    def alike(dense: Sequence[int], mixed: Sequence[int]) -> Cut:
        """Return the cut that is the same forward and backward."""
        return Cut(tuple(dense), tuple(mixed), tuple(dense))

    def of(self, way: int) -> Bounds:
        """Return the bounds of dense work, 0 forward or 1 backward."""
        return self.back if way else self.dense


class Degrees(Protocol):
    """What a technique's knobs say of degrees."""

    @property
    def degree(self) -> int | None: ...

    @property
    def degree_dense(self) -> int | None: ...

    @property
    def degree_backward(self) -> int | None: ...

    @property
    def degree_dense_backward(self) -> int | None: ...

    @property
    def most(self) -> int: ...


D = TypeVar("D", bound=Degrees)


def backward_fits(config: D) -> D:
    """Return the knobs. Raises ValueError where chunks of backward cannot be made of forward's, or forward's of them."""
    for forward, backward, coarser in (
        ("degree_dense", "degree_dense_backward", True),
        ("degree", "degree_backward", False),
    ):
        pair = getattr(config, forward), getattr(config, backward)
        if None not in pair and (pair[0] % pair[1] if coarser else pair[1] % pair[0]):
            what = "divides" if coarser else "is a multiple of"
            raise ValueError(f"{backward} {what} {forward}, and they are {pair[1]} and {pair[0]}")
    return config


def dense_degrees(config: Degrees) -> list[int]:
    """Return the degrees of dense work to choose from: the one asked for, or powers of two times that of backward."""
    if config.degree_dense is not None:
        return [config.degree_dense]
    least = config.degree_dense_backward or 1
    return [least * degree for degree in divisors(max(1, config.most // least))]


class Planner:
    """The chains of a step, cut in every way that is asked for: chunks and costs are kept."""

    def __init__(self, plan: Plan, context: Context, walked: Chained) -> None:
        self.plan, self.context, self.chained = plan, context, walked
        self.costs = Costs(plan, context)
        self._works: dict[object, Work] = {}
        self._chunks: dict[Cut, list[dict[Key, Task]]] = {}
        # What chunks take, by their size: of tasks alike, and of each task by identity.
        self._taken: dict[object, dict[tuple[int, ...], float]] = {}
        self._alike: dict[int, dict[tuple[int, ...], float]] = {}

    @staticmethod
    def of(plan: Plan, step: Step, context: Context, axis: str) -> Planner:
        """Return the planner of a plain step, to be cut along `axis`."""
        return Planner(plan, context, chained(step, context.stages, context.mixtures, context.batch, axis))

    def of_first(self, number: int) -> Planner:
        """Return the planner of the first `number` layers of each chain, which makes no step."""
        chains = [
            replace(chain, layers=chain.layers[:number], mixtures=chain.mixtures[:number]) for chain in self.chains
        ]
        few = Planner(self.plan, self.context, replace(self.chained, forward=chains[0], backward=chains[1]))
        few.costs, few._taken = self.costs, self._taken
        return few

    @property
    def chains(self) -> tuple[Chain, Chain]:
        """Both chains, forward and backward."""
        return self.chained.forward, self.chained.backward

    def work(self, way: int, cut: Cut) -> Work:
        """Return the chunks of a chain in numbers, 0 forward or 1 backward."""
        parts = cut.parts if way else 1  # forward only tells more counts
        key = (way, cut.of(way), cut.mixed, parts)
        if key not in self._works:
            chain = self._chains(parts)[way]
            shape = _shape(_Likeness(chain), cut.of(way), cut.mixed)
            taken = {
                (number, place): self._seconds(chain, (number, place), cut.of(way), cut.mixed)
                for number, layer in enumerate(chain.layers)
                for place in range(len(layer))
            }
            seconds = tuple([taken[number, place][chunk] for number, place, chunk in shape.keys])
            self._works[key] = replace(shape, seconds=seconds)
        return self._works[key]

    def _chains(self, parts: int) -> tuple[Chain, Chain]:
        found = self.chained.in_parts(parts)
        return found.forward, found.backward

    def _seconds(self, chain: Chain, at: tuple[int, int], dense: Bounds, mixed: Bounds) -> list[float]:
        """Return what each chunk of a task takes; those of one size are alike."""
        task = chain.layers[at[0]][at[1]]
        if id(task) not in self._alike:
            self._alike[id(task)] = self._taken.setdefault(_facts(task), {})
        known = self._alike[id(task)]
        found = []
        for chunk, size in enumerate(chain.sizes(at, dense, mixed)):
            if size not in known:
                op, span = chain.op((*at, chunk), dense, mixed), self.context.span(self.plan, task)
                known[size] = float(op.cost_s(self.context.cluster, span))  # TypeError: planned one by one
            found.append(known[size])
        return found

    def step(self, cut: Cut, orders: Sequence[Sequence[int]], *, late: bool) -> Step:
        """Return the step with both chains cut and ordered; orders are checked."""
        keys = []
        for way, order in enumerate(orders):
            work = self.work(way, cut)
            work.check(order)
            keys.append([work.keys[number] for number in order])
        if cut not in self._chunks:
            chains = self._chains(cut.parts)
            self._chunks[cut] = [chain.cut(cut.of(way), cut.mixed) for way, chain in enumerate(chains)]
        return self.chained.in_parts(cut.parts).woven(self._chunks[cut], keys, late=late)

    def best_step(self, cut: Cut, orders: Sequence[Sequence[int]]) -> Step:
        """Return the step whose gradients are sent as soon as they exist, in holes that rows leave, or behind the last rows,
        whichever ends first.
        """
        ready = self.step(cut, orders, late=False)
        steps = [ready, *(filled(ready, self.costs.seconds, slack) for slack in SLACKS)]
        steps.append(self.step(cut, orders, late=True))
        return min(steps, key=self.costs.finish_s)

    def best_plan(self, axis: str, cut: Cut, orders: Sequence[Sequence[int]]) -> Plan:
        """Return the plan with every step's chains cut and ordered alike, each step's gradients sent as suits it best."""
        steps = [self.best_step(cut, orders)]
        for step in self.plan.steps[1:]:
            steps.append(Planner.of(self.plan, step, self.context, axis).best_step(cut, orders))
        return replace(self.plan, steps=tuple(steps))

    def backwards(self, cut: Cut, config: Degrees, order: Callable[[Work], list[int]]) -> Cut:
        """Return the cut with backward as asked, or as soonest ended by itself in the `order` found: dense work in as many chunks
        as forward or in fewer, each chunk of a mixture in one part or in more.
        """
        number, mixed = len(cut.dense) - 1, len(cut.mixed) - 1
        fewer = [n for n in divisors(number) if number % n == 0][::-1]
        parts = [n for n in divisors(max(1, config.most // mixed)) if n <= self._fewest(cut)]
        if config.degree_dense_backward is not None:
            fewer = [min(number, config.degree_dense_backward)]
        if config.degree_backward is not None:
            parts = [max(1, min(config.degree_backward // mixed, self._fewest(cut)))]
        found = [cut._replace(back=aligned(cut.dense, n), parts=m) for n in fewer for m in parts]
        if len(found) == 1:
            return found[0]

        def ends_s(one: Cut) -> float:
            work = self.work(1, one)
            return work.makespan(order(work))

        return min(found, key=ends_s)

    def _fewest(self, cut: Cut) -> int:
        """Return the positions of the smallest chunk of a mixture."""
        chain = self.chained.forward
        return min(
            end - begin for layer in range(len(chain.mixtures)) for begin, end in chain.positions(layer, cut.mixed)
        )


_SIZES = ("flops", "moved_bytes", "seconds", "dtype", "positions", "products", "quadratic", "units", "first", "last", "begin",
          "end", "algorithm", "leg", "neighbours")  # fmt: skip


def _facts(task: Task) -> tuple[object, ...]:
    """Return what decides the cost of a chunk, whose layer it may be."""
    op = task.op
    return (type(op), task.group, op.nbytes, *(getattr(op, name, None) for name in _SIZES))


class Costs:
    """What the tasks of a plan's steps cost; those alike are asked for once."""

    def __init__(self, plan: Plan, context: Context) -> None:
        self._plan, self._context = plan, context
        self._by_task: dict[int, tuple[Task, float]] = {}
        self._alike: dict[object, float] = {}

    def seconds(self, task: Task) -> float:
        """Return what one task costs. Raises TypeError for arrays: then layers are planned one by one."""
        known = self._by_task.get(id(task))
        if known is None or known[0] is not task:
            known = self._by_task[id(task)] = (task, self._asked(task))
        return known[1]

    def _asked(self, task: Task) -> float:
        op = task.op
        if not op.in_layer:
            return float(op.cost_s(self._context.cluster, self._context.span(self._plan, task)))
        facts = _facts(task)
        if facts not in self._alike:
            self._alike[facts] = float(op.cost_s(self._context.cluster, self._context.span(self._plan, task)))
        return self._alike[facts]

    def plan_s(self, plan: Plan) -> float:
        """Return what the steps of a plan take together, each alone."""
        return sum(self.finish_s(step) for step in plan.steps)

    def finish_s(self, step: Step) -> float:
        """Return when the last task of a step ends that begins alone: what the simulator says where steps do not overlap."""
        free: dict[str, float] = {}
        ends: dict[str, float] = {}
        for task in step:
            start = max([free.get(task.stream, 0.0), *(ends[name] for name in task.after)])
            free[task.stream] = ends[task.name] = start + self.seconds(task)
        return max(free.values())
