"""Reduce-scatter on a ring, over gloo's messages between two ranks, on a thread of its own. gloo itself has none.

Letters: P ranks, N items. In step s of P - 1, rank r hands the sum so far of part r - s to the next rank, and gets part
r - s - 1 from the one before it: one message a link at a time. An all-to-all of the parts sends to all ranks at once; on a
link that is full some of them then leave long before others, and the collective behind waits for the last: DeAR's step on few
large tensors at 200 Mbit/s took 403 ms so, and takes 297 with the ring (benchmarks/RESULTS.md).
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any
from weakref import WeakKeyDictionary, finalize

import torch
from torch import Tensor

# gloo numbers its collectives upwards from 0, and messages of the same number go to whoever asks first.
FIRST_TAG = 1 << 30


class Turn:
    """A reduce-scatter under way, as torch's works are."""

    def __init__(self) -> None:
        self._future: torch.futures.Future[Any] = torch.futures.Future()

    def wait(self) -> None:
        """Return when it has ended. RuntimeError: another rank is gone."""
        self._future.wait()

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._future.done()

    def get_future(self) -> torch.futures.Future[Any]:
        """Return what is set when it has ended."""
        return self._future


def reduce_scatter(backend: Any, flat: Tensor, shard: Tensor, scratch: Tensor) -> Turn:
    """Sum `flat` [N] over the ranks of `backend` and leave this rank's part in `shard` [N/P], which may be a part of `flat`.

    `scratch` [N] is used until it has ended. One runs at a time, in the order of calls, which is the same on all ranks.
    """
    if backend not in _lines:
        line: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        Thread(target=_serve, args=(line,), name="reduce-scatter", daemon=True).start()
        finalize(backend, line.put, None)
        _lines[backend] = line
    turn = Turn()
    _lines[backend].put(lambda: _take(turn, backend, flat, shard, scratch))
    return turn


_lines: WeakKeyDictionary[Any, SimpleQueue[Callable[[], None] | None]] = WeakKeyDictionary()


def _serve(line: SimpleQueue[Callable[[], None] | None]) -> None:
    """Run what comes until the backend is gone. Nothing of the last one is kept: it holds the backend."""
    while (take := line.get()) is not None:
        take()
        del take


def _take(turn: Turn, backend: Any, flat: Tensor, shard: Tensor, scratch: Tensor) -> None:
    future = turn.get_future()
    try:
        with torch.no_grad():
            _around(backend, flat, shard, scratch)
    except Exception as error:  # noqa: BLE001  raised where somebody waits
        future.set_exception(error)
    else:
        future.set_result(None)


def _around(backend: Any, flat: Tensor, shard: Tensor, scratch: Tensor) -> None:
    ranks, rank = backend.size(), backend.rank()
    own, sums = flat.view(ranks, -1), scratch.view(ranks, -1)
    ahead, behind = (rank + 1) % ranks, (rank - 1) % ranks
    sent = own[behind]
    if ranks == 1:
        shard.copy_(sent)
    for step in range(1, ranks):
        part = (rank - step - 1) % ranks
        got = backend.recv([sums[part]], behind, FIRST_TAG + step)
        gone = backend.send([sent], ahead, FIRST_TAG + step)
        got.wait()
        sent = torch.add(sums[part], own[part], out=sums[part] if part != rank else shard)
        gone.wait()
