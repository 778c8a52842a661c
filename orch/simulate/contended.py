"""Kernels that compete for the multiprocessors of a GPU: what computes fills them all, and what communicates needs a few.

Event-driven. Used where a cluster says how many of its device's multiprocessors a collective's kernel holds (`sharing.units`,
`sharing.held`). A design of our own, worked out for SM-MoE (Pan et al., ICDCS 2025, of which only the abstract was seen):

- A collective that is resident keeps its multiprocessors; compute that begins beside it runs on the others, and on all of
  them once nothing is resident.
- Compute that began alone has all of them: a collective that becomes ready meanwhile waits until it ends, or one of the
  pieces that it is computed in. One that follows another on its stream takes over its multiprocessors and does not wait.
- Who has waited longest is launched first; of those that become ready at once, the one that stands first in the step's list.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from orch.plan import COMPUTE, Plan, Task
from orch.plan.timeline import Timeline
from orch.simulate.fluid import LEAST_RATE, boundaries_of, gate

if TYPE_CHECKING:
    from orch.cluster import Sharing

Place = tuple[int, int]  # iteration, and place in its step


@dataclass(slots=True)
class _Running:
    """A task under way: seconds of its piece that are left at full rate, pieces after that, and whether the piece began beside
    a collective.
    """

    place: Place
    left: float
    piece_s: float
    pieces: int
    held: int = 0
    beside: bool = False
    paused: bool = False


class _Stream:
    """One stream: what it still has to run, since when the first of that could, and when its last task ended."""

    __slots__ = ("ended", "name", "next", "queue", "running", "since")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queue: list[Place] = []
        self.next = 0
        self.running: _Running | None = None
        self.since = self.ended = math.nan

    @property
    def busy(self) -> bool:
        """Whether a task is under way, and not between two pieces."""
        return self.running is not None and not self.running.paused


class Contended:
    """One simulation. `costs[step][task]` are seconds alone on the device, or on the network."""

    def __init__(self, plan: Plan, costs: Sequence[Sequence[float]], sharing: Sharing, iterations: int) -> None:
        self._plan, self._costs, self._sharing = plan, costs, sharing
        self._steps = [plan.steps[index % plan.period] for index in range(iterations)]
        self._starts = [[math.nan] * len(step) for step in self._steps]
        self._ends = [[math.nan] * len(step) for step in self._steps]
        self._may_start = gate(plan, self._ends)
        self._streams: dict[str, _Stream] = {COMPUTE: _Stream(COMPUTE)}
        self._now = 0.0
        for index, step in enumerate(self._steps):
            for position, task in enumerate(step):
                if index or not task.lag:  # the first step has nothing of an earlier one to finish
                    stream = self._streams.setdefault(task.stream, _Stream(task.stream))
                    stream.queue.append((index, position))

    def run(self) -> Timeline:
        """Return the timeline."""
        while True:
            self._launch()
            streams = [stream for stream in self._streams.values() if stream.busy]
            if not streams:
                break
            self._advance(streams)
        boundaries = np.array(boundaries_of(self._plan, self._steps, self._ends))
        starts, ends = (tuple(map(np.array, times)) for times in (self._starts, self._ends))
        return Timeline(self._plan, starts, ends, boundaries, "simulated")

    def _task(self, place: Place) -> Task:
        return self._steps[place[0]].tasks[place[1]]

    def _launch(self) -> None:
        """Start what may start, in the order in which it became ready."""
        for _, _, stream in sorted(self._candidates(), key=lambda one: one[:2]):
            if stream.name == COMPUTE:
                self._compute(stream)
            elif self._admits(stream):
                self._begin(stream)

    def _candidates(self) -> Iterator[tuple[float, Place, _Stream]]:
        for stream in self._streams.values():
            if stream.running is not None:
                if stream.running.paused:
                    yield stream.ended, stream.running.place, stream
            elif stream.next < len(stream.queue) and self._may_start(*stream.queue[stream.next]):
                if math.isnan(stream.since):
                    stream.since = self._now
                yield stream.since, stream.queue[stream.next], stream

    def _admits(self, stream: _Stream) -> bool:
        """Whether a collective gets multiprocessors: nothing computes, or it takes over those of the one before it."""
        computing = self._streams[COMPUTE]
        if not computing.busy:
            return True
        assert computing.running is not None
        return computing.running.beside and stream.ended == self._now

    def _begin(self, stream: _Stream) -> None:
        place = stream.queue[stream.next]
        stream.next += 1
        stream.since = math.nan
        self._starts[place[0]][place[1]] = self._now
        op = self._task(place).op
        seconds = self._costs[place[0] % self._plan.period][place[1]]
        pieces = getattr(op, "pieces", 1)
        held = 0 if stream.name == COMPUTE else getattr(op, "channels", 0) or self._sharing.held
        stream.running = _Running(place, seconds / pieces, seconds / pieces, pieces - 1, held)

    def _compute(self, stream: _Stream) -> None:
        """Start a task, or the next piece of one."""
        if stream.running is None:
            self._begin(stream)
        running = stream.running
        assert running is not None
        if running.paused:
            running.left, running.pieces, running.paused = running.piece_s, running.pieces - 1, False
        running.beside = any(other.busy for other in self._streams.values() if other is not stream)

    def _advance(self, streams: Sequence[_Stream]) -> None:
        """Go on to the next end."""
        rates = self._rates(streams)
        tasks = [stream.running for stream in streams if stream.running is not None]
        elapsed = min(task.left / rate for task, rate in zip(tasks, rates, strict=True))
        self._now += elapsed
        rounding = 1e-12 * max(1.0, self._now)
        for stream, task, rate in zip(streams, tasks, rates, strict=True):
            task.left -= elapsed * rate
            if task.left > rounding:
                continue
            stream.ended = self._now
            if task.pieces:
                task.paused = True
            else:
                self._ends[task.place[0]][task.place[1]] = self._now
                stream.running = None

    def _rates(self, streams: Sequence[_Stream]) -> list[float]:
        held = sum(stream.running.held for stream in streams if stream.running is not None)
        left = max(LEAST_RATE, 1.0 - held / self._sharing.units)
        computing = any(stream.name == COMPUTE for stream in streams)
        slowed = 1.0 / self._sharing.communication_slowdown if computing else 1.0
        return [left if stream.name == COMPUTE else slowed for stream in streams]
