"""Where gradients travel between the rows of a layer: crossings at their degrees, the holes in them, and what fills these.

A pass cuts every crossing, finds the holes of backward (between the last chunk out and the first one back, and in the dense
stretch behind a crossing), lets a policy put gradients there, whole or in parts, and lays everything out in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count as numbers
from typing import Protocol

from orch.plan import (
    NET,
    AllReduce,
    Buffer,
    Crossing,
    Operation,
    Plan,
    Rows,
    Segment,
    Step,
    Task,
    crossings,
    recut,
)
from orch.technique import Context
from techniques.moe._pipeline import Costs, makespan, seconds

# The groups in which gradients of what is no expert travel.
DENSE = ("world", "shards")


class Degrees(Protocol):
    """How crossings are cut: as asked, or in at most `most` chunks."""

    @property
    def degree(self) -> int | None: ...

    @property
    def degree_backward(self) -> int | None: ...

    @property
    def most(self) -> int: ...


@dataclass
class Piece:
    """What is left of one gradient of a send."""

    send: Task
    whole: Segment
    begin: int
    numel: int

    @property
    def nbytes(self) -> int:
        """Bytes of it."""
        return self.whole.nbytes // self.whole.numel * self.numel

    def segment(self) -> Segment:
        """Return the segment that carries it: the gradient itself, or a part."""
        if self.numel == self.whole.numel:
            return self.whole
        first = (self.whole.begin or 0) + self.begin
        return replace(self.whole, name=f"{self.whole.tensor}@{first}", numel=self.numel, begin=first)


class Queue:
    """The gradients of sends, in order, handed out by bytes."""

    def __init__(self, sends: Sequence[Task]) -> None:
        self.pieces = [
            Piece(send, segment, 0, segment.numel)
            for send in sends
            if isinstance(send.op, AllReduce)
            for segment in send.op.buffer.segments
            if segment.numel
        ]

    def take(
        self, nbytes: float, slack: float = 0.0, may: Callable[[Piece], bool] = lambda piece: True
    ) -> Iterator[Piece]:
        """Yield pieces of `nbytes` together, the first in line first, while they `may` go; none leaves less than `slack`
        of its gradient.
        """
        while self.pieces and nbytes >= 1.0 and may(self.pieces[0]):
            piece = self.pieces[0]
            if piece.nbytes <= nbytes + slack:
                nbytes -= piece.nbytes
                yield self.pieces.pop(0)
                continue
            numel = int(nbytes * piece.numel / piece.nbytes)
            if numel:
                yield replace(piece, numel=numel)
                piece.begin, piece.numel = piece.begin + numel, piece.numel - numel
            return


def by_send(pieces: Sequence[Piece]) -> dict[str, list[Segment]]:
    """Return the segments of pieces by the send that they are of."""
    result: dict[str, list[Segment]] = {}
    for piece in pieces:
        result.setdefault(piece.send.name, []).append(piece.segment())
    return result


@dataclass(frozen=True)
class Shape:
    """A crossing at one degree: its makespan, and how long the stream of its exchanges is busy with them [s]."""

    degree: int
    makespan_s: float
    busy_s: float

    def with_gradients(self, gradient_s: float) -> float:
        """Return the makespan when gradients take `gradient_s` between the last chunk out and the first one back.

        f(t) = max(makespan, busy + t): the hole takes makespan - busy for nothing.
        """
        return max(self.makespan_s, self.busy_s + gradient_s)


@dataclass
class Hole:
    """Where gradients may travel: behind task `anchor`, those that exist when the task at `start` begins.

    A crossing has its shapes by degree, and gradients go between its last chunk out and the first one back; a stretch
    of dense backward before the next crossing has none, and hides `free_s` seconds.
    """

    anchor: str
    start: int
    free_s: float = 0.0
    crossing: Crossing | None = None
    shapes: list[Shape] = field(default_factory=list)
    given_s: float = 0.0
    loads: list[list[Piece]] = field(default_factory=list)

    def f(self, gradient_s: float) -> float:
        """Return the least makespan with `gradient_s` of gradients in it; of a dense stretch what it delays."""
        if not self.shapes:
            return max(0.0, gradient_s - self.free_s)
        return min(shape.with_gradients(gradient_s) for shape in self.shapes)

    @property
    def hidden_s(self) -> float:
        """Seconds of gradients that cost nothing here."""
        if not self.shapes:
            return self.free_s
        best = min(self.shapes, key=lambda shape: (shape.makespan_s, shape.degree))
        return best.makespan_s - best.busy_s

    @property
    def degree(self) -> int:
        """The best degree beside the gradients given; the smallest on ties."""
        return min(self.shapes, key=lambda shape: (shape.with_gradients(self.given_s), shape.degree)).degree


def shapes(plan: Plan, context: Context, crossing: Crossing, degrees: Sequence[int]) -> list[Shape]:
    """Return the crossing at each of `degrees`."""
    found = []
    costs = Costs(plan, context, crossing)
    costs.look_up(degrees)
    for degree in degrees:
        times = costs.times(degree)
        busy = sum(sum(stage) for stage, stream in zip(times, costs.streams, strict=True) if stream == NET)
        found.append(Shape(degree, makespan(times, costs.streams, crossing.before), busy))
    return found


class _Alike:
    """A crossing at some degrees as far as its shapes go: equal for layers alike, of one model or of a grid of them."""

    def __init__(
        self, plan: Plan, context: Context, crossing: Crossing, degrees: Sequence[int], facts: tuple[object, ...]
    ) -> None:
        self.asked = plan, context, crossing, degrees
        self._cluster = context.cluster
        self._facts = (facts, tuple(context.span(plan, task) for task in crossing.stages))

    def __hash__(self) -> int:
        return hash(self._facts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Alike) and self._cluster is other._cluster and self._facts == other._facts


@lru_cache(maxsize=64)
def _kept_shapes(alike: _Alike) -> list[Shape]:
    return shapes(*alike.asked)


def facts(op: Operation) -> tuple[object, ...]:
    """Return what decides the cost of a stage, whose layer it may be."""
    return type(op), op.nbytes, *(getattr(op, name, None) for name in _SIZES)


_SIZES = ("flops", "moved_bytes", "seconds", "dtype", "positions", "products", "algorithm", "leg", "neighbours")


def last_out(crossing: Crossing) -> Task:
    """Return the stage behind which gradients find the network free: the last that sends rows out on it."""
    out = crossing.stages[: crossing.stages.index(crossing.expert)]
    return next(
        (task for task in reversed(out) if isinstance(task.op, Rows) and task.stream == NET), crossing.stages[0]
    )


ShareOut = Callable[["Pass", list[Hole], list[Task]], list[Piece]]


class Pass:
    """The pass over one step. `share_out` puts what it can of gradients' sends into holes and returns what is left."""

    def __init__(self, plan: Plan, step: Step, context: Context, config: Degrees, share_out: ShareOut | None) -> None:
        self.plan, self.step, self.context, self.config = plan, step, context, config
        self._share_out = share_out
        self.place = {task.name: index for index, task in enumerate(step)}

    def run(self) -> Step:
        """Return the step with crossings cut and gradients shared out."""
        cuts: dict[str, Sequence[Task]] = {}
        holes: list[Hole] = []
        for crossing in crossings(self.step):
            asked = self.config.degree_backward if crossing.backward else self.config.degree
            most = min(crossing.positions, self.config.most if len(crossing.stages) > 1 else 1)
            degrees = range(1, most + 1) if asked is None else [min(asked, crossing.positions)]
            alike = (tuple(degrees), *((t.stream, t.group, crossing.before, facts(t.op)) for t in crossing.stages))
            found = _kept_shapes(_Alike(self.plan, self.context, crossing, degrees, alike))
            if crossing.backward and len(crossing.stages) > 1:
                first, last = last_out(crossing).name, crossing.stages[-1].name
                holes.append(Hole(first, self.place[first], crossing=crossing, shapes=found))
                holes.append(Hole(last, self.place[last], self._dense_s(self.place[last])))
            else:
                best = min(found, key=lambda shape: (shape.makespan_s, shape.degree)).degree
                cuts.update(_named(crossing, best))
        sends = self._sends() if holes and self._share_out is not None else []
        # Behind the last crossing no rows are held up: gradients travel as they are scheduled.
        late = self._share_out(self, holes[:-1], sends) if sends and self._share_out is not None else []
        for hole in holes:
            if hole.crossing is not None:
                cuts.update(_named(hole.crossing, hole.degree))
        return self._assembled(cuts, holes, sends, late)

    def _dense_s(self, place: int) -> float:
        """Return how long the device computes, or meets others, from task `place` to the next crossing's first exchange."""
        total = 0.0
        for task in self.step.tasks[place + 1 :]:
            if task.op.kind == "restore_backward":
                return total + seconds(self.plan, self.context, task)
            if task.stream != NET:
                total += seconds(self.plan, self.context, task)
        return total

    def _sends(self) -> list[Task]:
        """Return the all-reduces of dense gradients that nothing but the update waits for: over all ranks, or over those
        that hold the same share of attention, whichever are more, as a part travels in one group.
        """
        awaited = {name for task in self.step if task.op.kind != "update" for name in task.after}
        awaited |= {name for step in self.plan.steps for task in step for name in task.after_previous}
        by_group: dict[str, list[Task]] = {}
        for task in self.step:
            if (
                isinstance(task.op, AllReduce)
                and task.group in DENSE
                and task.lag == 0
                and task.name not in awaited
                and all(segment.is_gradient for segment in task.op.buffer.segments)
            ):
                by_group.setdefault(task.group, []).append(task)
        return max(by_group.values(), key=lambda sends: sum(task.op.nbytes for task in sends), default=[])

    def exists(self, piece: Piece, before: int) -> bool:
        """Whether the gradient exists when the task at `before` begins."""
        return self.ready(piece) < before

    def ready(self, piece: Piece) -> int:
        """Return the place of the task that makes it."""
        return max((self.place[name] for name in piece.send.after), default=-1)

    def _assembled(
        self, cuts: dict[str, Sequence[Task]], holes: list[Hole], sends: list[Task], late: list[Piece]
    ) -> Step:
        """Return the step with stages cut, and gradients between the last chunk out and the first one back."""
        if not any(hole.loads for hole in holes):
            return recut(self.step, cuts) if cuts else self.step
        first = {hole.anchor: hole for hole in holes}
        moved = {send.name for send in sends}
        left = by_send(late)
        tasks: list[Task] = []
        carriers: list[tuple[str, Buffer]] = []
        last = holes[-1].start
        held: list[Task] = []

        # Sends that stay (experts' own) keep their names.
        free = (name for number in numbers() if (name := f"all_reduce.b{number}") not in self.place or name in moved)

        def carry(segments: Sequence[Segment], after: Sequence[str], like: Task) -> Task:
            name = next(free)
            buffer = Buffer(name, tuple(segments))
            carriers.append((name, buffer))
            return replace(like, name=name, op=AllReduce(buffer), after=tuple(after))

        for index, task in enumerate(self.step):
            if task.name in moved:
                # What is left travels when it is ready, but not before the last crossing, whose rows it would hold up.
                if task.name in left:
                    held.append(task)
                if index > last:
                    tasks += [carry(left[one.name], one.after, one) for one in held]
                    held = []
                continue
            tasks.extend(cuts.get(task.name, (task,)))
            if task.name in first:
                for load in first[task.name].loads:
                    after = self._furthest({name for piece in load for name in piece.send.after})
                    tasks.append(carry([piece.segment() for piece in load], after, sends[0]))
            if index == last:
                tasks += [carry(left[one.name], one.after, one) for one in held]
                held = []
        return recut(Step(tuple(self._renamed(tasks, cuts, moved, carriers))), {})

    def _furthest(self, names: set[str]) -> tuple[str, ...]:
        """All stand on the compute stream, so the last has waited for the others."""
        return (max(names, key=self.place.__getitem__),)

    def _renamed(
        self, tasks: list[Task], cuts: dict[str, Sequence[Task]], moved: set[str], carriers: list[tuple[str, Buffer]]
    ) -> Iterator[Task]:
        ends = {name: chunks[-1].name for name, chunks in cuts.items()}
        everything = tuple(name for name, _ in carriers)
        known = {task.name for task in tasks}
        for task in tasks:
            after: list[str] = []
            for name in task.after:
                if name in moved:
                    after += everything
                else:
                    after.append(name if name in known else ends[name])
            yield replace(task, after=tuple(dict.fromkeys(after))) if tuple(after) != task.after else task


def _named(crossing: Crossing, degree: int) -> Iterator[tuple[str, Sequence[Task]]]:
    if degree > 1:
        yield from ((stage.name, chunks) for stage, chunks in zip(crossing.stages, crossing.cut(degree), strict=True))
