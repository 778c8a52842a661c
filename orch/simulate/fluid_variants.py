"""The rule of `fluid.py` on many variants at once: every variant steps from event to event on a clock of its own.

Streams run in order, so what a task waits for on another stream is a count of tasks that must have ended there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orch.simulate.simulator import Row

Array = NDArray[np.float64]
_ENDED = 1e-12  # a remainder below rounding is an end, as in `fluid.py`


def boundaries(
    programs: Sequence[Sequence[Row]], is_net: Sequence[bool], slowdowns: tuple[Any, Any], iterations: int
) -> Array:
    """Return [iterations, variants]: when the compute stream (stream 0) ends each iteration, in seconds.

    `programs` are the steps of the period as rows whose seconds are floats or arrays; `slowdowns` those of compute while
    a network stream runs and of network streams while compute runs.
    """
    queues = _Queues(programs, len(is_net), iterations)
    variants = queues.variants(slowdowns)
    nets = [stream for stream, net in enumerate(is_net) if net]
    # Seconds that pass for one of work: of compute while the network is busy, of a network stream while compute runs.
    stretched = [np.broadcast_to(np.asarray(slowdowns[net], float), (variants,)) for net in is_net]
    columns = np.arange(variants)
    done = np.zeros((len(is_net), variants), dtype=np.int64)
    running = np.zeros((len(is_net), variants), dtype=bool)
    left = np.zeros((len(is_net), variants))
    now = np.zeros(variants)
    result = np.zeros((iterations, variants))
    while True:
        for stream in range(len(is_net)):
            _start(queues, stream, done, running[stream], left[stream], columns)
        active = [stream for stream in range(len(is_net)) if running[stream].any()]
        if not active:
            # An iteration without computing ends when the one before it did.
            return np.maximum.accumulate(result, axis=0)
        computing, busy = running[0], running[nets[0]] if len(nets) == 1 else running[nets].any(axis=0)
        slow = {
            stream: np.where(computing if is_net[stream] else busy, stretched[stream], 1.0)
            if stream == 0 or is_net[stream]
            else np.ones(variants)
            for stream in active
        }
        wait = np.full(variants, np.inf)
        for stream in active:
            np.minimum(wait, left[stream] * slow[stream], out=wait, where=running[stream])
        wait[np.isinf(wait)] = 0.0
        now += wait
        rounding = _ENDED * np.maximum(1.0, now)
        for stream in active:
            left[stream] -= wait / slow[stream]
            ended = running[stream] & (left[stream] <= rounding)
            done[stream] += ended
            running[stream] &= ~ended
            if stream == 0:
                iteration = queues.closes[done[0]]
                closing = ended & (iteration >= 0)
                result[iteration[closing], columns[closing]] = now[closing]


def _start(queues: _Queues, stream: int, done: Any, running: Any, left: Any, columns: Any) -> None:
    """Start the next task of a stream in every variant in which it may: none is running there, and what it needs has
    ended.
    """
    if running.all():
        return
    heads = done[stream]
    may = ~running & (heads < queues.lengths[stream])
    for other, counts in queues.needs[stream]:
        may &= done[other] >= counts[heads]
    if may.any():
        left[may] = queues.seconds[stream][heads[may], columns[may] if queues.wide[stream] else 0]
        running |= may


class _Queues:
    """The tasks of every stream over all iterations: seconds, what each needs of the others, where iterations end."""

    def __init__(self, programs: Sequence[Sequence[Row]], num_streams: int, iterations: int) -> None:
        seconds: list[list[Any]] = [[] for _ in range(num_streams)]
        needs: list[list[list[int]]] = [[] for _ in range(num_streams)]
        closes: dict[int, int] = {}
        previous: list[tuple[int, int] | None] = []
        for iteration in range(iterations):
            places: list[tuple[int, int] | None] = []
            for row in programs[iteration % len(programs)]:
                if row.lag and not iteration:
                    places.append(None)  # nothing of an earlier step is left to finish
                    continue
                need = [0] * num_streams
                before = [previous[place] for place in row.previous] if iteration else []
                for found in (*(places[place] for place in row.after), *before):
                    if found is not None and found[0] != row.stream:
                        need[found[0]] = max(need[found[0]], found[1] + 1)
                places.append((row.stream, len(seconds[row.stream])))
                seconds[row.stream].append(row.seconds)
                needs[row.stream].append(need)
            if len(seconds[0]) > max(closes, default=0):
                closes[len(seconds[0])] = iteration
            previous = places
        self.lengths = [len(stream) for stream in seconds]
        self.wide = [any(np.ndim(value) for value in stream) for stream in seconds]
        self._given = seconds
        self.seconds: list[Array] = []
        # One more entry than tasks, for a stream that has ended; other streams that nothing waits for are left out.
        counts = [np.array([*stream, [0] * num_streams], dtype=np.int64).T for stream in needs]
        self.needs = [[(other, row.copy()) for other, row in enumerate(stream) if row.any()] for stream in counts]
        self.closes = np.array([closes.get(count, -1) for count in range(self.lengths[0] + 1)])

    def variants(self, others: Sequence[Any]) -> int:
        """Lay the seconds out as arrays [tasks, variants], or [tasks, 1], and return how many variants there are."""
        values = [*others, *(value for stream in self._given for value in stream)]
        count = max((len(value) for value in values if np.ndim(value)), default=1)
        self.seconds = [
            np.array([np.broadcast_to(np.asarray(value, float), (count if wide else 1,)) for value in stream])
            for stream, wide in zip(self._given, self.wide, strict=True)
        ]
        return count
