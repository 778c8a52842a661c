"""Launch one collective on one flat tensor, asynchronously. Sums only: the mean is made by whoever fills the buffer.

Letters: P ranks, N items. gloo's own reduce-scatter is an all-reduce of a copy, twice the traffic and a result that is
complete only after `wait`; ours is a ring.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from torch import Tensor

from orch.runtime import ring
from orch.runtime.legs import Gathered, Parcel, Summed


def all_reduce(backend: Any, flat: Tensor) -> Any:
    """Sum `flat` [N] over the ranks, in place; return the work."""
    return backend.allreduce([flat])


def reduce_scatter(backend: Any, flat: Tensor, shard: Tensor, scratch: Tensor) -> Any:
    """Sum `flat` [N] over the ranks and leave this rank's part in `shard` [N/P], which may be a part of `flat`.

    `scratch` [N] is used until the work has ended.
    """
    if flat.is_cuda:
        return backend._reduce_scatter_base(shard, flat)
    return ring.reduce_scatter(backend, flat, shard, scratch)


def all_gather(backend: Any, whole: Tensor, part: Tensor) -> Any:
    """Lay every rank's `part` [N/P] end to end in `whole` [N]; `part` may be this rank's place in it. Return the work."""
    return backend._allgather_base(whole, part)


def all_to_all(backend: Any, received: Tensor, sent: Tensor, received_split: list[int], sent_split: list[int]) -> Any:
    """Hand each rank its part of `sent` [Q, M], `sent_split` rows each, and fill `received` likewise; return the work.

    Empty splits mean equal parts.
    """
    return backend.alltoall_base(received, sent, received_split, sent_split)


def broadcast(backend: Any, flat: Tensor, root: int) -> Any:
    """Let every rank have the `flat` [N] of the rank at place `root`; return the work."""
    return backend.broadcast(flat, root)


def reduce(backend: Any, flat: Tensor, root: int) -> Any:
    """Sum `flat` [N] over the ranks, for the one at place `root`; those of others mean nothing afterwards. Return the work."""
    return backend.reduce(flat, root)


def hand_over(backend: Any, parcel: Parcel, place: int) -> Any:
    """Launch what `parcel` is for, of whose ranks this is the `place`-th; return the work that ends last."""
    if isinstance(parcel, Summed):
        return all_reduce(backend, parcel.sent.view(-1))
    if isinstance(parcel, Gathered):
        return all_gather(backend, parcel.received.view(-1), parcel.sent.view(-1))
    sent, received, to, by = parcel.sent, parcel.received, parcel.sent_split, parcel.received_split
    if parcel.root is not None:
        return (reduce if parcel.adds else broadcast)(backend, sent, parcel.root)
    if not parcel.steps:
        return all_to_all(backend, received, sent, by, to)
    size = len(to)
    sends, gets = ([0, *accumulate(split)] for split in (to, by))
    work = None
    for step in range(size):
        # A step is an all-to-all in which everyone sends to one rank and hears of one: pairwise exchange.
        ahead, behind = (place + step) % size, (place - step) % size
        one_to, one_by = ([n if rank == peer else 0 for rank, n in enumerate(split)]
                          for split, peer in ((to, ahead), (by, behind)))  # fmt: skip
        work = all_to_all(
            backend, received[gets[behind] : gets[behind + 1]], sent[sends[ahead] : sends[ahead + 1]], one_by, one_to
        )
    return work
