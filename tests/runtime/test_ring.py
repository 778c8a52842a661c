"""Reduce-scatter on a ring: several under way at once, beside gloo's own collectives, and a thread that goes with its group."""

from __future__ import annotations

import gc
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from orch.runtime import ring
from orch.runtime.base import backend_of
from tests.runtime.worlds import World, run


def many(world: World) -> list[list[float]]:
    backend = backend_of(world.group(), torch.device("cpu"))
    flats = [torch.arange(3.0 * world.size) * number + world.rank for number in range(6)]
    shards = [torch.empty(3) for _ in flats]
    whole, works = torch.full((4,), float(world.rank)), []
    for flat, shard in zip(flats, shards, strict=True):
        works.append(ring.reduce_scatter(backend, flat, shard, torch.empty_like(flat)))
        works.append(backend.allreduce([whole]))
    for work in works:
        work.wait()
    assert all(work.is_completed() for work in works)
    assert [flat.tolist() for flat in flats] == [
        (torch.arange(3.0 * world.size) * number + world.rank).tolist() for number in range(6)
    ], "the buffer of another part than this rank's was written"
    return [shard.tolist() for shard in shards]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_several_at_once_beside_other_collectives(size: int) -> None:
    for rank, shards in enumerate(run(size, many)):
        for number, shard in enumerate(shards):
            whole = size * number * torch.arange(3.0 * size) + sum(range(size))
            assert shard == whole[3 * rank : 3 * rank + 3].tolist()


def test_whoever_waits_is_told_that_a_rank_is_gone() -> None:
    store = dist.HashStore()
    made: list[dist.ProcessGroupGloo] = []

    def other() -> None:
        made.append(dist.ProcessGroupGloo(store, 1, 2, timedelta(seconds=30)))

    peer = threading.Thread(target=other)
    peer.start()
    backend = dist.ProcessGroupGloo(store, 0, 2, timedelta(seconds=30))
    peer.join()
    turn = ring.reduce_scatter(backend, torch.ones(4), torch.empty(2), torch.empty(4))
    made.clear()
    with pytest.raises(RuntimeError):
        turn.wait()
    assert turn.is_completed()


def test_the_thread_goes_with_its_group() -> None:
    def serving() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "reduce-scatter"]

    before = serving()
    backend = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(seconds=30))
    ring.reduce_scatter(backend, torch.ones(4), torch.empty(4), torch.empty(4)).wait()
    (own,) = [thread for thread in serving() if thread not in before]
    del backend
    gc.collect()
    own.join(timeout=30)
    assert not own.is_alive()
