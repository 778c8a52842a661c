"""Splits: windows over text, lazy samples, stratification, hashes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.errors import OrchError
from orch.models.splits import Arrays, Lazy, Part, Scaled, Windows, sha256_of, stratified


def test_windows_do_not_overlap_and_targets_follow() -> None:
    split = Windows(np.arange(10, dtype=np.uint16), 3, vocab=10)
    inputs, targets = split.take(np.array([2, 0]))
    assert len(split) == 3
    assert inputs.tolist() == [[6, 7, 8], [0, 1, 2]]
    assert targets.tolist() == [[7, 8, 9], [1, 2, 3]]
    assert inputs.dtype == targets.dtype == np.int64
    assert [len(Windows(np.arange(n), 3, vocab=9)) for n in (0, 1, 3, 4)] == [0, 0, 0, 1]


def test_a_token_beyond_the_vocabulary_is_refused_when_it_is_met() -> None:
    split = Windows(np.array([0, 1, 2, 3, 4, 99, 6], dtype=np.uint16), 3, vocab=50)
    assert split.take(np.array([0]))[0].tolist() == [[0, 1, 2]]
    with pytest.raises(OrchError, match=r"tokens from 3 to 99, but data.vocab is 50; set data.vocab=100 or more"):
        split.take(np.array([1]))


def test_images_are_scaled_when_taken_by_repeating_pixels() -> None:
    split = Scaled(Arrays(np.arange(4.0).reshape(1, 1, 2, 2), np.array([7])), 3, 2)
    inputs, targets = split.take(np.array([0]))
    assert (len(split), targets.tolist()) == (1, [7])
    assert inputs.tolist() == [[[[0, 0, 1], [0, 0, 1], [2, 2, 3]]] * 2]


def test_lazy_samples_are_read_when_asked_for() -> None:
    read: list[int] = []

    def reader(number: int) -> np.ndarray:
        read.append(number)
        return np.full(2, number)

    split = Lazy(reader, np.arange(5))
    inputs, targets = split.take(np.array([3, 1]))
    assert (len(split), read) == (5, [3, 1])
    assert inputs.tolist() == [[3, 3], [1, 1]]
    assert targets.tolist() == [3, 1]


def test_what_is_taken_is_a_copy() -> None:
    split = Arrays(np.zeros((3, 2)), np.zeros(3))
    split.take(np.array([0]))[0][:] = 7
    assert split.inputs.sum() == 0


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.floats(0.05, 0.5))
def test_stratification_is_a_partition_and_keeps_shares(labels: list[int], held_out: float) -> None:
    array = np.array(labels)
    train, test = stratified(array, held_out)
    assert sorted([*train, *test]) == list(range(len(labels)))
    for label in set(labels):
        members = (array == label).sum()
        held = (array[test] == label).sum()
        assert abs(held - held_out * members) <= 1
        assert held < members or members == 0


def test_stratification_is_repeatable_and_seeded() -> None:
    labels = np.arange(100) % 10
    assert stratified(labels, 0.2)[1].tolist() == stratified(labels, 0.2)[1].tolist()
    assert stratified(labels, 0.2)[1].tolist() != stratified(labels, 0.2, seed=1)[1].tolist()


@pytest.mark.parametrize("other", [np.arange(4, dtype=np.int64), np.arange(4).reshape(2, 2), np.array([0, 1, 2, 4])])
def test_the_hash_covers_types_shapes_and_values(other: np.ndarray) -> None:
    kept = np.arange(4, dtype=np.int32)
    assert sha256_of(kept) == sha256_of(kept.copy())
    assert sha256_of(kept) != sha256_of(other.astype(np.int64) if other.ndim == 1 else other)


def test_parts_are_as_long_as_each_other_and_share_nothing() -> None:
    whole = Arrays(np.arange(11), np.arange(11) * 10)
    parts = [Part(whole, part, 3) for part in range(3)]
    assert [len(part) for part in parts] == [3, 3, 3]
    assert sorted(int(n) for part in parts for n in part.take(np.arange(3))[0]) == list(range(9))
    assert parts[1].take(np.array([2]))[1].tolist() == [70]
