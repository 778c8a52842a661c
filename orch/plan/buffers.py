"""What a collective carries: named segments laid end to end in one flat buffer."""

from __future__ import annotations

from dataclasses import dataclass, field

ITEM_SIZE = {"fp64": 8, "int64": 8, "fp32": 4, "int32": 4, "fp16": 2, "bf16": 2, "int8": 1, "uint8": 1}


class Value:
    """Base of the frozen data that operations hold. Reading a plan from a file makes values and operations, nothing
    else.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Segment(Value):
    """One part of a payload: `numel` items of `dtype` that serve gradient `tensor`; activations serve none ("").

    A segment named like its tensor IS the gradient: the runtime packs it before the collective and hands the
    reduced values back as the gradient after it. So is one with a `begin`: the part of it from that element on. Any
    other is filled and read by operations.
    """

    name: str
    numel: int
    dtype: str
    tensor: str
    begin: int | None = field(default=None, metadata={"unsaid": True})

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.numel * ITEM_SIZE[self.dtype]

    @property
    def is_gradient(self) -> bool:
        """Whether this segment is the dense gradient itself, or a part of it."""
        return self.name == self.tensor or self.begin is not None


@dataclass(frozen=True, slots=True)
class Buffer(Value):
    """A flat payload. `pad_to` rounds the number of items up (a reduce-scatter needs a multiple of the world size)."""

    name: str
    segments: tuple[Segment, ...]
    pad_to: int = 1

    @property
    def nbytes(self) -> int:
        """Size in bytes, padding included."""
        total, largest = 0, 1
        for segment in self.segments:
            size = ITEM_SIZE[segment.dtype]
            total += segment.numel * size
            if size > largest:
                largest = size
        unit = self.pad_to * largest
        return -(-total // unit) * unit

    @property
    def tensors(self) -> tuple[str, ...]:
        """The gradients served, each once, in segment order."""
        if len(self.segments) == 1:
            tensor = self.segments[0].tensor
            return (tensor,) if tensor else ()
        return tuple(dict.fromkeys([segment.tensor for segment in self.segments if segment.tensor]))


@dataclass(frozen=True, slots=True)
class Group:
    """The ordered ranks of a collective. Several disjoint blocks of one name: each rank is in the block that holds
    it.
    """

    name: str
    blocks: tuple[range | tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """Ranks in the largest block."""
        return max((len(block) for block in self.blocks), default=0)

    def block_of(self, rank: int) -> range | tuple[int, ...]:
        """Return the block that holds `rank`; raises KeyError when none does."""
        for block in self.blocks:
            if rank in block:
                return block
        raise KeyError(rank)
