"""Share a split over the workers: one endless global order, the same for every stack and every world size.

Epoch after epoch the samples stand in a freshly shuffled row; step s takes the next `world_size * batch` of them, rank
r the r-th share. Nothing is dropped or padded: a batch may end one epoch and begin the next, so every sample is seen
once an epoch whatever the sizes, every batch is full, and means over ranks are means over samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice

import numpy as np

from orch.errors import OrchError
from orch.models.splits import Array, Split

FETCH_AHEAD_BYTES = 1 << 26


@dataclass(frozen=True, eq=False, slots=True)
class Batch:
    """One worker's samples of one step. `first` is the place of its first sample in the endless global order, which no
    other batch shares: what must be drawn for a batch (masks) is drawn from it.
    """

    inputs: Array
    targets: Array
    first: int
    epoch: float


class Batches:
    """The batches of one rank, an endless iterator. `position` counts the samples all ranks have taken before the next
    batch: set it to resume, also in a world of another size.
    """

    def __init__(
        self, split: Split, *, rank: int, world_size: int, batch_per_worker: int, seed: int, position: int = 0
    ) -> None:
        if not len(split):
            raise OrchError("there is nothing to train on: the data has no samples", code="E442")
        if not 0 <= rank < world_size or batch_per_worker < 1 or position < 0:
            message = f"rank {rank} of {world_size}, batch {batch_per_worker}, position {position} make no batch"
            raise OrchError(message, code="E442")
        self.split = split
        self.rank = rank
        self.world_size = world_size
        self.batch = batch_per_worker
        self.seed = seed
        self.position = position

    @property
    def epoch(self) -> float:
        """Epochs done by all ranks together before the next batch."""
        return self.position / len(self.split)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        first = self.position + self.rank * self.batch
        inputs, targets = self.split.take(global_order(self.seed, len(self.split), first, self.batch))
        batch = Batch(inputs, targets, first, self.epoch)
        self.position += self.world_size * self.batch
        return batch


def global_order(seed: int, samples: int, first: int, number: int) -> Array:
    """Return the sample numbers at places `first` to `first + number` of the endless order: int64 [number]."""
    parts = []
    while number > 0:
        epoch, offset = divmod(first, samples)
        part = _shuffled(seed, samples, epoch)[offset : offset + number]
        parts.append(part)
        first += len(part)
        number -= len(part)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


@lru_cache(maxsize=4)
def _shuffled(seed: int, samples: int, epoch: int) -> Array:
    order = np.random.default_rng([seed, epoch]).permutation(samples)
    order.flags.writeable = False
    return order


def fetched(batches: Batches, steps: int) -> Iterable[Batch]:
    """Return the next batches, fetched before the clock starts where they fit into memory: loading is no part of a
    plan.
    """
    if steps < 1:
        return ()
    first = next(batches)
    if (first.inputs.nbytes + first.targets.nbytes) * steps > FETCH_AHEAD_BYTES:
        return chain([first], islice(batches, steps - 1))
    return [first, *islice(batches, steps - 1)]
