"""Consecutive layers of a model as one chain of tasks, forward and backward: dense work and mixtures, each cut into chunks.

A layer is a mixture with the dense work that leads to it. In the plain plan the dense work is whole modules; here it becomes
two tasks, `attend` and `gate` (`orch.plan.dense`), so that a chunk of it can run while another chunk's rows travel, of this
layer or of the one before. Chunks are ranges of *units*: tokens of a sample, or samples of a worker's batch. Dense work up to
behind attention has bounds of its own, forward and backward; everything behind it is cut by those of the mixtures, whose
chunks each choose experts, fill capacities and tell counts for themselves, and cross backward whole or in parts. A task waits
for the chunks of the task before it that share units with it; of tokens, attention also for its own chunk before (backward:
behind), whose keys and values it looks at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle, pairwise
from typing import Any

from orch.models.profile import Mixture
from orch.plan.crossing import COUNTS, RELAYED
from orch.plan.dense import Attend, AttendBackward, Gate, GateBackward
from orch.plan.experts import Expert, ExpertBackward, Layout, RecodeRows, Rows
from orch.plan.operations import Backward
from orch.plan.plan import COMPUTE, Step, Task

# A task of a chain: layer in walking order, place in the layer, chunk.
Key = tuple[int, int, int]
Range = tuple[int, int]
_DENSE = (Attend, AttendBackward)


@dataclass(frozen=True)
class Chain:
    """One way through all layers, uncut: of each layer, in walking order, its tasks in the order in which they follow.

    `units` can be cut; of each layer `positions(units)` are rows' positions. `ordered`: attention goes chunk after chunk.
    """

    backward: bool
    units: int
    ordered: bool
    layers: tuple[tuple[Task, ...], ...]
    mixtures: tuple[Mixture, ...]
    # A worker's tokens in one unit.
    tokens: int
    # In so many parts each chunk of a mixture crosses backward: its rows, and what experts do with them.
    parts: int = 1

    def ranges(self, task: Task, dense: Sequence[int], mixed: Sequence[int]) -> list[Range]:
        """Return the units of each chunk of a task; of the parts of a chunk those of the chunk."""
        if isinstance(task.op, _DENSE) or self.meets(task):
            return list(pairwise(dense))
        parts = self.parts if self._parted(task) else 1
        return [units for units in pairwise(mixed) for _ in range(parts)]

    def _parted(self, task: Task) -> bool:
        return self.parts > 1 and self.backward and isinstance(task.op, ExpertBackward | RecodeRows | Rows)

    def spans(self, task: Task, dense: Sequence[int], mixed: Sequence[int]) -> list[Range]:
        """Return where each chunk of a task begins and ends, in `parts` of a unit: those that overlap wait for one another."""
        found = [(first * self.parts, last * self.parts) for first, last in self.ranges(task, dense, mixed)]
        if not self._parted(task) or self.meets(task):
            return found
        return [
            (first + (last - first) // self.parts * part, first + (last - first) // self.parts * (part + 1))
            for (first, last), part in zip(found, cycle(range(self.parts)), strict=False)
        ]

    def meets(self, task: Task) -> bool:
        """Whether it is a collective of ranks that share samples: they meet at a module of attention, not at a mixture."""
        return isinstance(task.op, Rows) and task.op.module not in self._names

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(one.name for one in self.mixtures)

    def crossed(self, layer: int, task: Task, chunk: int, mixed: Sequence[int]) -> Range:
        """Return the positions that a chunk of a mixture's task is about."""
        if not self._parted(task):
            return self.positions(layer, mixed)[chunk]
        begin, end = self.positions(layer, mixed)[chunk // self.parts]
        part, size = chunk % self.parts, end - begin
        return begin + size * part // self.parts, begin + size * (part + 1) // self.parts

    def sizes(self, at: Range, dense: Sequence[int], mixed: Sequence[int]) -> Sequence[tuple[int, ...]]:
        """Return, by chunk, what decides how long the task at layer and place `at` takes: chunks of one size are alike."""
        task = self.layers[at[0]][at[1]]
        ranges = self.ranges(task, dense, mixed)
        if getattr(task.op, "quadratic", 0.0):
            return ranges
        if not self._parted(task) or self.meets(task):
            return [(last - first,) for first, last in ranges]
        rows = [self.crossed(at[0], task, chunk, mixed) for chunk in range(len(ranges))]
        return [
            (last - first, self.parts, end - begin) for (first, last), (begin, end) in zip(ranges, rows, strict=True)
        ]

    def positions(self, layer: int, mixed: Sequence[int]) -> list[Range]:
        """Return the positions of each chunk of a mixture's rows: a chunk's slots are those that its own tokens fill."""
        ends = [0]
        for first, last in pairwise(mixed):
            ends.append(ends[-1] + self.mixtures[layer].positions((last - first) * self.tokens))
        return list(pairwise(ends))

    def cut(self, dense: Sequence[int], mixed: Sequence[int]) -> dict[Key, Task]:
        """Return the tasks of all chunks; bounds go from 0 to `units`. No gradient is ready yet: that depends on the order."""
        found: dict[Key, Task] = {}
        known = {task.name for layer in self.layers for task in layer}
        for key, before in self.waits(dense, mixed).items():
            task = self.layers[key[0]][key[1]]
            after = [name for name in task.after if name not in known]
            after += [_name(self.layers[number][place], chunk) for number, place, chunk in before]
            name = _name(task, key[2])
            op = self.op(key, dense, mixed)
            if isinstance(op, Rows):
                op = replace(
                    op, buffer=replace(op.buffer, name=name, segments=(replace(op.buffer.segments[0], name=name),))
                )
            found[key] = replace(task, name=name, after=tuple(after), op=op)
        return found

    def waits(self, dense: Sequence[int], mixed: Sequence[int]) -> dict[Key, tuple[Key, ...]]:
        """Return of each chunk of the chain those that it waits for: what shares units with it, and of attention that is cut
        along tokens its own chunk before (backward: behind).
        """
        places = {
            task.name: (number, place) for number, layer in enumerate(self.layers) for place, task in enumerate(layer)
        }
        found: dict[Key, tuple[Key, ...]] = {}
        for number, layer in enumerate(self.layers):
            for place, task in enumerate(layer):
                spans = self.spans(task, dense, mixed)
                before = [places[name] for name in task.after if name in places]
                earlier = [(at, self.spans(self.layers[at[0]][at[1]], dense, mixed)) for at in before]
                for chunk, (begin, end) in enumerate(spans):
                    keys = [
                        (*at, other)
                        for at, found_at in earlier
                        for other, (first, last) in enumerate(found_at)
                        if first < end and begin < last
                    ]
                    own = chunk + 1 if self.backward else chunk - 1
                    if self.ordered and isinstance(task.op, _DENSE) and 0 <= own < len(spans):
                        keys.append((number, place, own))
                    found[number, place, chunk] = tuple(keys)
        return found

    def op(self, key: Key, dense: Sequence[int], mixed: Sequence[int]) -> Any:
        """Return the operation of one chunk. Its buffer, where it has one, is still called as that of the whole."""
        number, place, chunk = key
        task = self.layers[number][place]
        units = self.ranges(task, dense, mixed)[chunk]
        if self.meets(task):
            assert isinstance(task.op, Rows)
            first, last = (unit * task.op.positions // self.units for unit in units)
            return task.op.cut(first, last, name=task.name)
        if isinstance(task.op, _DENSE):
            return task.op.cut(*units)
        return self._op(task, task.name, units, self.crossed(number, task, chunk, mixed))

    def _op(self, task: Task, name: str, units: Range, rows: Range) -> Any:
        op: Any = task.op
        if isinstance(op, Gate | GateBackward):
            return op.cut(*units, *rows)
        if isinstance(op, Layout):
            return op.cut(*rows, (units[1] - units[0]) / self.units, (rows[1] - rows[0]) / self._whole(task))
        if isinstance(op, Rows) and op.part in (COUNTS, RELAYED):
            (whole,) = op.buffer.segments
            numel = whole.numel * self.parts
            return replace(op, buffer=Rows.buffer_of(name, numel, whole.dtype), begin=rows[0], end=rows[1])
        if isinstance(op, Rows):
            return op.cut(*rows, name=name)
        assert isinstance(op, Expert | ExpertBackward | RecodeRows)
        return op.cut(*rows, last=False)

    def _whole(self, task: Task) -> int:
        mixture = next(one for one in self.mixtures if one.name == task.op.module)  # type: ignore[attr-defined]
        return mixture.positions(self.units * self.tokens)

    def in_turn(self, dense: Sequence[int], mixed: Sequence[int]) -> list[Key]:
        """Return the plain order: all chunks of a task before any of the next."""
        found = []
        for number, layer in enumerate(self.layers):
            for place, task in enumerate(layer):
                chunks = range(len(self.ranges(task, dense, mixed)))
                found += [(number, place, chunk) for chunk in (reversed(chunks) if self.backward else chunks)]
        return found

    def ready(self, layer: int, place: int) -> tuple[str, ...]:
        """Return the gradients that a task makes."""
        op = self.layers[layer][place].op
        return op.ready if isinstance(op, Backward) else ()


def _name(task: Task, chunk: int) -> str:
    return f"{task.name}.c{chunk}"


def bounds(units: int, chunks: int) -> tuple[int, ...]:
    """Return the bounds of `chunks` chunks of `units`, or of as many as there are; sizes differ by at most one."""
    chunks = min(units, chunks)
    return tuple(units * number // chunks for number in range(chunks + 1))


@dataclass(frozen=True)
class Chained:
    """A step whose layers are walked as chains: both of them, and by the name of each plain task the tasks it became."""

    step: Step
    forward: Chain
    backward: Chain
    became: Mapping[str, tuple[str, ...]]

    def in_parts(self, parts: int) -> Chained:
        """Return the same chains, each chunk of a mixture backward in so many `parts`."""
        if parts == self.backward.parts:
            return self
        return replace(self, forward=replace(self.forward, parts=parts), backward=replace(self.backward, parts=parts))

    def woven(
        self, chunks: Sequence[Mapping[Key, Task]], orders: Sequence[Sequence[Key]], *, late: bool = False
    ) -> Step:
        """Return the step with both chains cut, `chunks`, and laid out in `orders`, forward and backward.

        What stood among the tasks of a chain keeps its order: forward it stands before the first that needs it, backward as
        soon as what it needs has run; with `late` behind the chain.
        """
        ends: dict[str, str] = {}
        laid: list[list[Task]] = []
        for chain, tasks, order in zip((self.forward, self.backward), chunks, orders, strict=True):
            last = {(number, place): (number, place, chunk) for number, place, chunk in order}
            for (number, place), key in last.items():
                ends[chain.layers[number][place].name] = tasks[key].name
            laid.append([_made_ready(chain, tasks[key], key, last) for key in order])
        result: list[Task] = []
        regions = [[], []]  # type: list[list[Task]]
        spans = [self._span(chain) for chain in (self.forward, self.backward)]
        for place, task in enumerate(self.step):
            inside = next((number for number, (first, last) in enumerate(spans) if first <= place <= last), None)
            if inside is None:
                result.append(self._renamed(task, ends))
                continue
            regions[inside].append(task)
            if place == spans[inside][1]:
                weave = self._before if inside == 0 else self._behind
                result += weave(regions[inside], laid[inside], ends, late)
        return Step(tuple(result))

    def _span(self, chain: Chain) -> Range:
        names = {task.name for layer in chain.layers for task in layer}
        places = [place for place, task in enumerate(self.step) if not names.isdisjoint(self.became.get(task.name, ()))]
        return min(places), max(places)

    def _renamed(self, task: Task, ends: Mapping[str, str]) -> Task:
        if self.became.keys().isdisjoint(task.after):
            return task
        new = [ends[end] for name in task.after for end in self.became.get(name, ())]
        kept = [name for name in task.after if name not in self.became]
        return replace(task, after=tuple(dict.fromkeys((*kept, *new))))

    def _before(self, region: list[Task], laid: list[Task], ends: Mapping[str, str], late: bool) -> Iterator[Task]:
        """Weave what the forward chain waits for into it: named, or earlier on the compute stream."""
        del late
        others = [task for task in region if task.name not in self.became]
        places = {task.name: number + 1 for number, task in enumerate(others)}
        needs: dict[str, int] = {}
        computed = 0
        for task in region:
            if task.name in places:
                computed = places[task.name] if task.stream == COMPUTE else computed
            else:
                for name in self.became[task.name]:
                    needs[name] = max(needs.get(name, 0), computed)
        done = 0
        for task in laid:
            need = max([needs.get(task.name.rpartition(".c")[0], 0), *(places.get(name, 0) for name in task.after)])
            yield from (self._renamed(other, ends) for other in others[done:need])
            done = max(done, need)
            yield task
        yield from (self._renamed(other, ends) for other in others[done:])

    def _behind(self, region: list[Task], laid: list[Task], ends: Mapping[str, str], late: bool) -> Iterator[Task]:
        """Weave what waits for the backward chain into it: by name, or as it stood behind on the compute stream."""
        others: list[tuple[Task, set[str]]] = []
        before: tuple[str, ...] = ()
        for task in region:
            if task.name in self.became:
                before = self.became[task.name]
                continue
            new = self._renamed(task, ends)
            waits = set(new.after) | ({ends[name] for name in before} if task.stream == COMPUTE else set())
            others.append((new, waits & {one.name for one in laid}))
        run: set[str] = set()
        for task in laid:
            yield task
            run.add(task.name)
            while others and not late and others[0][1] <= run:
                yield others.pop(0)[0]
        yield from (task for task, _ in others)


def _made_ready(chain: Chain, task: Task, key: Key, last: Mapping[tuple[int, int], Key]) -> Task:
    ready = chain.ready(*key[:2])
    if not ready or last[key[:2]] != key:
        return task
    return replace(task, op=replace(task.op, ready=ready))  # type: ignore[call-arg]
