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
    net = np.flatnonzero(is_net)
    slow_compute, slow_net = (np.broadcast_to(np.asarray(value, float), (variants,)) for value in slowdowns)
    columns = np.arange(variants)
    done = np.zeros((len(is_net), variants), dtype=np.int64)
    running = np.zeros((len(is_net), variants), dtype=bool)
    left = np.zeros((len(is_net), variants))
    now = np.zeros(variants)
    result = np.zeros((iterations, variants))
    lengths = queues.lengths
    while True:
        for stream in range(len(is_net)):
            heads = done[stream]
            may = ~running[stream] & (heads < lengths[stream]) & np.all(done >= queues.needs[stream][:, heads], axis=0)
            if may.any():
                left[stream, may] = queues.seconds[stream][heads[may], columns[may] if queues.wide[stream] else 0]
                running[stream] |= may
        if not running.any():
            # An iteration without computing ends when the one before it did.
            return np.maximum.accumulate(result, axis=0)
        computing, busy = running[0], running[net].any(axis=0)
        rates = np.ones_like(left)
        rates[0] = np.where(busy, 1.0 / slow_compute, 1.0)
        rates[net] = np.where(computing, 1.0 / slow_net, 1.0)
        wait = np.where(running, left / rates, np.inf).min(axis=0)
        wait = np.where(np.isfinite(wait), wait, 0.0)
        now += wait
        left -= wait * rates
        ended = running & (left <= _ENDED * np.maximum(1.0, now))
        done += ended
        running &= ~ended
        iteration = queues.closes[done[0]]
        closing = ended[0] & (iteration >= 0)
        result[iteration[closing], columns[closing]] = now[closing]


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
        # One more column than tasks, for a stream that has ended.
        self.needs = [np.array([*stream, [0] * num_streams], dtype=np.int64).T for stream in needs]
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
