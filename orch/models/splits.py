"""Data in memory: a split hands out samples by number; a loaded set is a training and a test split with a hash.

Shapes: B samples, C channels, H height, W width, S sequence. Images float32 [B, C, H, W] with labels int64 [B]; text
int64 [B, S] with the following tokens int64 [B, S].
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from orch.errors import OrchError
from orch.models.kinds import Interface

Array = npt.NDArray[Any]


class Split(Protocol):
    """Samples by number."""

    def __len__(self) -> int: ...

    def take(self, indices: Array) -> tuple[Array, Array]:
        """Return the inputs and targets of these samples, in this order."""
        ...


@dataclass(frozen=True, eq=False)
class Arrays:
    """Samples held as arrays, first axis the sample."""

    inputs: Array
    targets: Array

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, indices: Array) -> tuple[Array, Array]:
        """Return copies of these samples."""
        return self.inputs[indices], self.targets[indices]


@dataclass(frozen=True, eq=False)
class Scaled:
    """Images of another split, scaled when they are taken, so that memory holds the small ones."""

    split: Split
    size: int
    channels: int

    def __len__(self) -> int:
        return len(self.split)

    def take(self, indices: Array) -> tuple[Array, Array]:
        """Return these samples, scaled."""
        inputs, targets = self.split.take(indices)
        return resized(inputs, self.size, self.channels), targets


@dataclass(frozen=True, eq=False)
class Part:
    """Every `parts`-th sample of another split, from number `part` on; as many for every part, so a few are left out."""

    split: Split
    part: int
    parts: int

    def __len__(self) -> int:
        return len(self.split) // self.parts

    def take(self, indices: Array) -> tuple[Array, Array]:
        """Return these samples."""
        return self.split.take(np.asarray(indices) * self.parts + self.part)


@dataclass(frozen=True, eq=False)
class Windows:
    """A stream of tokens [N] cut into samples of `seq_len`; the target of each token is the one after it."""

    tokens: Array
    seq_len: int
    vocab: int

    def __len__(self) -> int:
        return max(0, (len(self.tokens) - 1) // self.seq_len)

    def take(self, indices: Array) -> tuple[Array, Array]:
        """Return the sequences and their next tokens. Raises OrchError (E441) for a token that is not below `vocab`."""
        places = np.asarray(indices)[:, None] * self.seq_len + np.arange(self.seq_len + 1)
        picked = self.tokens[places].astype(np.int64)
        if picked.size and not 0 <= picked.min() <= picked.max() < self.vocab:
            largest = int(picked.max())
            message = f"the data holds tokens from {picked.min()} to {largest}, but data.vocab is {self.vocab}"
            raise OrchError(message, code="E441", hint=f"set data.vocab={largest + 1} or more, or another data.dtype")
        return picked[:, :-1], picked[:, 1:]


@dataclass(frozen=True, eq=False)
class Lazy:
    """Samples that are read when they are asked for: `read(number)` returns one input."""

    read: Callable[[int], Array]
    targets: Array

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, indices: Array) -> tuple[Array, Array]:
        """Read and return these samples."""
        return np.stack([self.read(int(index)) for index in indices]), self.targets[indices]


@dataclass(frozen=True, eq=False)
class Loaded:
    """A data set in memory. `sha256` covers every number it holds (names and sizes, for files read lazily)."""

    name: str
    train: Split
    test: Split
    interface: Interface
    sha256: str

    def facts(self) -> dict[str, Any]:
        """Return what a run records about its data."""
        return {"name": self.name, "sha256": self.sha256, "train": len(self.train), "test": len(self.test)}


def resized(images: Array, size: int, channels: int) -> Array:
    """Return images [B, 1, H, W] as [B, channels, size, size]: pixels and grey values repeated, none interpolated."""
    side = images.shape[-1]
    if size != side:
        picked = np.arange(size) * side // size
        images = images[:, :, picked][:, :, :, picked]
    return np.repeat(images, channels, axis=1) if channels != 1 else images


def sha256_of(*arrays: Array) -> str:
    """Return the hash of arrays: types, shapes and bytes."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def stratified(labels: Array, held_out: float, seed: int = 0) -> tuple[Array, Array]:
    """Return the numbers of training and test samples, each sorted; every class gives the same share to the test."""
    generator = np.random.default_rng(seed)
    train, test = [], []
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        cut = max(1, round(held_out * len(members))) if len(members) > 1 else 0
        test.append(members[:cut])
        train.append(members[cut:])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))
