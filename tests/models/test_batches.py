"""Sharding: one global order for every world size, each sample once an epoch, resumable anywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.errors import OrchError
from orch.models.batches import Batches, global_order
from orch.models.splits import Arrays


def split(samples: int) -> Arrays:
    return Arrays(np.arange(samples), np.arange(samples) * 10)


def taken(samples: int, world_size: int, batch: int, steps: int, seed: int = 0, position: int = 0) -> list[int]:
    """Return what all ranks take, in rank order within a step."""
    ranks = [
        Batches(split(samples), rank=rank, world_size=world_size, batch_per_worker=batch, seed=seed, position=position)
        for rank in range(world_size)
    ]
    return [int(sample) for _ in range(steps) for rank in ranks for sample in next(rank).inputs]


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 7), st.integers(1, 6))
def test_ranks_together_walk_the_global_order(samples: int, world_size: int, batch: int, steps: int) -> None:
    order = global_order(0, samples, 0, world_size * batch * steps)
    assert taken(samples, world_size, batch, steps) == order.tolist()


@given(st.integers(1, 40), st.integers(1, 5))
def test_every_sample_comes_once_an_epoch(samples: int, epochs: int) -> None:
    order = global_order(3, samples, 0, samples * epochs).reshape(epochs, samples)
    assert all(sorted(epoch) == list(range(samples)) for epoch in order.tolist())


def test_the_order_does_not_depend_on_the_world() -> None:
    assert taken(50, 4, 6, 5) == taken(50, 2, 12, 5) == taken(50, 1, 24, 5) == taken(50, 8, 3, 5)


def test_epochs_and_seeds_differ() -> None:
    order = global_order(0, 30, 0, 60)
    assert order[:30].tolist() != order[30:].tolist()
    assert order[:30].tolist() != global_order(1, 30, 0, 30).tolist()


def test_a_run_resumes_where_it_was_also_in_another_world() -> None:
    whole = taken(37, 3, 4, 6)
    batches = Batches(split(37), rank=0, world_size=3, batch_per_worker=4, seed=0)
    for _ in range(2):
        next(batches)
    assert batches.position == 24
    assert batches.epoch == pytest.approx(24 / 37)
    assert taken(37, 3, 4, 4, position=batches.position) == whole[24:]
    assert taken(37, 2, 6, 4, position=batches.position) == whole[24:]


def test_batches_are_full_carry_targets_and_know_their_place() -> None:
    batches = Batches(split(5), rank=1, world_size=2, batch_per_worker=4, seed=0)
    first, second = next(batches), next(batches)
    assert (len(first.inputs), len(second.inputs)) == (4, 4)
    assert (first.targets == first.inputs * 10).all()
    assert (first.first, second.first, second.epoch) == (4, 12, 8 / 5)


@pytest.mark.parametrize(
    ("samples", "changes", "message"),
    [
        (0, {}, "there is nothing to train on"),
        (5, {"rank": 2}, "rank 2 of 2, batch 1, position 0 make no batch"),
        (5, {"batch_per_worker": 0}, "batch 0"),
        (5, {"position": -1}, "position -1"),
    ],
)
def test_impossible_batches_are_refused(samples: int, changes: dict[str, int], message: str) -> None:
    arguments = {"rank": 0, "world_size": 2, "batch_per_worker": 1, "seed": 0, "position": 0} | changes
    with pytest.raises(OrchError, match=message):
        Batches(split(samples), **arguments)
