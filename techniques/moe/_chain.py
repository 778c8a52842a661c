"""Orders of the tasks of a chain of layers: what each costs, how long an order takes, and list scheduling.

Numbers only: a chain's chunks become a `Work`, an order is a sequence of its task numbers, and every stream takes its own tasks
in that order. The tasks of one stream follow each other as they stand, ready or not: a badly placed one holds up all behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise, product

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
from techniques.moe._gaps import SLACKS, filled

Key = tuple[int, int, int]
# What a task is to a schedule: dense work up to attention, rows on their way out, experts, rows on their way back, and what is
# short and holds others up.
DENSE, OUT, EXPERT, BACK, SHORT = "dense", "out", "expert", "back", "short"


@dataclass(frozen=True)
class Work:
    """The chunks of one chain in numbers: of each task its layer, chunk, kind, seconds and stream, and those it waits for.

    Tasks stand so that each comes behind those that it waits for.
    """

    keys: tuple[Key, ...]
    kinds: tuple[str, ...]
    seconds: tuple[float, ...]
    streams: tuple[str, ...]
    before: tuple[tuple[int, ...], ...]
    backward: bool = False
    behind: tuple[tuple[int, ...], ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if self.keys and not self.behind:
            object.__setattr__(self, "behind", turned(self.before))

    def makespan(self, order: Sequence[int]) -> float:
        """Return when the last task ends, each stream taking its own in `order`. Raises ValueError for one that waits for a
        later one.
        """
        free = dict.fromkeys(self.streams, 0.0)
        ends = [-1.0] * len(self.keys)
        seconds, streams, before = self.seconds, self.streams, self.before
        for number in order:
            stream = streams[number]
            start = free[stream]
            for other in before[number]:
                end = ends[other]
                if end < 0.0:
                    raise ValueError(f"task {self.keys[number]} stands before {self.keys[other]}, which it waits for")
                if end > start:
                    start = end
            free[stream] = ends[number] = start + seconds[number]
        return max(free.values())

    def bound(self) -> float:
        """Return what the busiest stream takes alone: no order takes less."""
        total: dict[str, float] = {}
        for stream, seconds in zip(self.streams, self.seconds, strict=True):
            total[stream] = total.get(stream, 0.0) + seconds
        return max(total.values())

    def check(self, order: Sequence[int]) -> None:
        """Raise ValueError unless `order` has every task once, each behind those that it waits for."""
        if sorted(order) != list(range(len(self.keys))):
            raise ValueError("an order has every task of the chain once")
        self.makespan(order)


def turned(before: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Return for each task those that wait for it, from those that it waits for."""
    behind: list[list[int]] = [[] for _ in before]
    for number, earlier in enumerate(before):
        for other in earlier:
            behind[other].append(number)
    return tuple(map(tuple, behind))


def greedy(work: Work, priority: Mapping[str, int]) -> list[int]:
    """Return a list schedule: of the tasks that may run the one that can start first; then the one whose kind has the smaller
    number, then by layer and chunk, in the order in which gradients come for backward (sp-moe brief, section 4.2).
    """
    sign = -1 if work.backward else 1
    places = sorted(
        range(len(work.keys)),
        key=lambda n: (priority.get(work.kinds[n], 0), work.keys[n][0], sign * work.keys[n][2], n),
    )
    rank = [0] * len(places)
    for place, number in enumerate(places):
        rank[number] = place
    names = list(dict.fromkeys(work.streams))
    stream = [names.index(name) for name in work.streams]
    free = [0.0] * len(names)
    begins = [0.0] * len(rank)
    left = [len(earlier) for earlier in work.before]
    ready = [number for number, waits in enumerate(left) if not waits]
    seconds, behind = work.seconds, work.behind
    order: list[int] = []
    while ready:
        chosen, least = -1, 0.0
        for number in ready:
            start, open_at = begins[number], free[stream[number]]
            if open_at > start:
                start = open_at
            if chosen < 0 or start < least or (start == least and rank[number] < rank[chosen]):
                chosen, least = number, start
        ready.remove(chosen)
        free[stream[chosen]] = end = least + seconds[chosen]
        order.append(chosen)
        for other in behind[chosen]:
            if end > begins[other]:
                begins[other] = end
            left[other] -= 1
            if not left[other]:
                ready.append(other)
    return order


# Who goes first where several could: attention or experts, rows out or rows back; or nobody, then layers and chunks decide.
POLICIES: dict[str, dict[str, int]] = {
    f"{first}-{way}": {
        SHORT: 0,
        DENSE: 1 if first == "dense" else 2,
        EXPERT: 2 if first == "dense" else 1,
        OUT: 1 if way == "out" else 2,
        BACK: 2 if way == "out" else 1,
    }
    for first, way in product(("dense", "expert"), ("out", "back"))
} | {"fifo": {}}


def by_policy(work: Work, policy: str | None) -> list[int]:
    """Return the list schedule of a policy; of the best one, the first on ties, where none is asked for."""
    if policy is not None:
        return greedy(work, POLICIES[policy])
    return min((greedy(work, one) for one in POLICIES.values()), key=work.makespan)


def layer_by_layer(work: Work, order: Sequence[int]) -> list[int]:
    """Return the order with no task of a layer before the last of the layer ahead of it."""
    return sorted(order, key=lambda number: work.keys[number][0])


def kind_of(chain: Chain, task: Task, place: int) -> str:
    """Return what a task is to a schedule."""
    op = task.op
    if isinstance(op, Attend | AttendBackward):
        return DENSE
    if isinstance(op, Expert | ExpertBackward):
        return EXPERT
    if isinstance(op, Rows) and not isinstance(op, RowSizes) and op.part not in (COUNTS, RELAYED):
        expert = next(n for n, one in enumerate(chain.layers[0]) if isinstance(one.op, Expert | ExpertBackward))
        return OUT if place < expert else BACK
    return SHORT


class _Likeness:
    """A chain as far as its shape goes: chains alike have equal ones."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self._facts = (chain.backward, chain.units, chain.ordered, tuple(
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


class Planner:
    """The chains of a step, cut in every way that is asked for: chunks and costs are kept."""

    def __init__(self, plan: Plan, context: Context, walked: Chained) -> None:
        self.plan, self.context, self.chained = plan, context, walked
        self.costs = Costs(plan, context)
        self._works: dict[object, Work] = {}
        self._chunks: dict[object, list[dict[Key, Task]]] = {}
        # What chunks take, by their units: of tasks alike, and of each task by identity.
        self._taken: dict[object, dict[tuple[int, int], float]] = {}
        self._alike: dict[int, dict[tuple[int, int], float]] = {}

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

    def work(self, way: int, dense: Sequence[int], mixed: Sequence[int]) -> Work:
        """Return the chunks of a chain in numbers, 0 forward or 1 backward."""
        key = (way, tuple(dense), tuple(mixed))
        if key not in self._works:
            chain = self.chains[way]
            shape = _shape(_Likeness(chain), key[1], key[2])
            taken = {
                (number, place): self._seconds(chain, (number, place), dense, mixed)
                for number, layer in enumerate(chain.layers)
                for place in range(len(layer))
            }
            seconds = tuple([taken[number, place][chunk] for number, place, chunk in shape.keys])
            self._works[key] = replace(shape, seconds=seconds)
        return self._works[key]

    def _seconds(self, chain: Chain, at: tuple[int, int], dense: Sequence[int], mixed: Sequence[int]) -> list[float]:
        """Return what each chunk of a task takes; those of one size are alike, unless it matters what stands before them."""
        task = chain.layers[at[0]][at[1]]
        if id(task) not in self._alike:
            self._alike[id(task)] = self._taken.setdefault(_facts(task), {})
        known = self._alike[id(task)]
        quadratic = bool(getattr(task.op, "quadratic", 0.0))
        found = []
        for chunk, (first, last) in enumerate(chain.ranges(task, dense, mixed)):
            units = (first, last) if quadratic else (0, last - first)
            if units not in known:
                op, span = chain.op((*at, chunk), dense, mixed), self.context.span(self.plan, task)
                known[units] = float(op.cost_s(self.context.cluster, span))  # TypeError: planned one by one
            found.append(known[units])
        return found

    def step(self, dense: Sequence[int], mixed: Sequence[int], orders: Sequence[Sequence[int]], *, late: bool) -> Step:
        """Return the step with both chains cut and ordered; orders are checked."""
        keys = []
        for way, order in enumerate(orders):
            work = self.work(way, dense, mixed)
            work.check(order)
            keys.append([work.keys[number] for number in order])
        at = (tuple(dense), tuple(mixed))
        if at not in self._chunks:
            self._chunks[at] = [chain.cut(dense, mixed) for chain in self.chains]
        return self.chained.woven(self._chunks[at], keys, late=late)

    def best_step(self, dense: Sequence[int], mixed: Sequence[int], orders: Sequence[Sequence[int]]) -> Step:
        """Return the step whose gradients are sent as soon as they exist, in holes that rows leave, or behind the last rows,
        whichever ends first.
        """
        ready = self.step(dense, mixed, orders, late=False)
        steps = [ready, *(filled(ready, self.costs.seconds, slack) for slack in SLACKS)]
        steps.append(self.step(dense, mixed, orders, late=True))
        return min(steps, key=self.costs.finish_s)

    def best_plan(self, axis: str, dense: Sequence[int], mixed: Sequence[int], orders: Sequence[Sequence[int]]) -> Plan:
        """Return the plan with every step's chains cut and ordered alike, each step's gradients sent as suits it best."""
        steps = [self.best_step(dense, mixed, orders)]
        for step in self.plan.steps[1:]:
            steps.append(Planner.of(self.plan, step, self.context, axis).best_step(dense, mixed, orders))
        return replace(self.plan, steps=tuple(steps))


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


def divisors(most: int) -> Iterator[int]:
    """Yield the powers of two up to `most`: of any two of them one divides the other."""
    degree = 1
    while degree <= most:
        yield degree
        degree *= 2


def aligned(dense: Sequence[int], degree: int) -> tuple[int, ...]:
    """Return the bounds of `degree` chunks of mixtures beside dense ones: some of theirs, or theirs cut further, so that as few
    chunks as can be wait for two.
    """
    number = len(dense) - 1
    if degree <= number:
        places = [number * place // degree for place in range(degree + 1)]
        return tuple(dense[place] for place in places)
    found: list[int] = []
    for place, (first, last) in enumerate(pairwise(dense)):
        parts = degree * (place + 1) // number - degree * place // number
        parts = min(parts, last - first)
        found += [first + (last - first) * part // parts for part in range(parts)]
    return (*found, dense[-1])
