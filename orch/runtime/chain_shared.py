"""A layer of a chain whose samples are shared: each rank computes some heads of every attention, and ranks meet around them.

Of each block the first part runs from what enters it up to attention, the second from there to a part of the sum over heads; both
begin with leaves of their own. Behind the second stands a collective, forward, and behind its gradients another one, backward:
what they bring is added by the task that waits for them. So forward's piece i is block i up to its part of the sum; what follows
the last block's sum is done where experts are chosen. Backward's piece i begins with the first part of block i and ends with the
second part of block i - 1 (`orch.plan.dense`).

Shapes: B samples, S tokens of a chunk, M the model's width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from orch.models.zoo.blocks import Block, Past
from orch.plan import Rows
from orch.runtime.buffers import DTYPES
from orch.runtime.chain import ChainedLayer, Dense, Facts, Kept, Range, Strip, inside, leaf_of
from orch.runtime.legs import Parcel, Summed


class Sum:
    """What the ranks add up at one place, in pieces along the dim that is cut: [B, S, M] in, as much out."""

    def __init__(self, facts: Facts) -> None:
        self._units = facts.units
        self._mine, self._whole = Strip(facts.dim), Strip(facts.dim)
        self._travelling: dict[Range, tuple[Parcel, torch.dtype]] = {}

    def put(self, first: int, last: int, part: Tensor) -> None:
        """Let `part` be what this rank adds to units `first` to `last`."""
        self._mine.put(first, last, part)

    def parcel(self, op: Rows) -> Parcel:
        """Return what the collective of `op` hands over and fills."""
        first, last = (place * self._units // op.positions for place in (op.begin, op.end))
        value = self._mine.get(first, last)
        parcel = Summed.of(value.to(DTYPES[op.buffer.segments[0].dtype]))
        self._travelling[first, last] = parcel, value.dtype
        return parcel

    def get(self, first: int, last: int) -> Tensor:
        """Return the sum over units `first` to `last`, whose collectives have ended."""
        for begin, end in [key for key in self._travelling if key[0] < last and first < key[1]]:
            parcel, dtype = self._travelling.pop((begin, end))
            self._whole.put(begin, end, parcel.received.to(dtype))
        return self._whole.get(first, last)


class SharedLayer(ChainedLayer):
    """One mixture and the blocks that lead to it, of which this rank has some heads."""

    def __init__(self, name: str, blocks: Sequence[Block], params: dict[str, tuple[str, ...]], facts: Facts) -> None:
        super().__init__(name, blocks, params, facts)
        number = range(len(blocks))
        self.sums, self.of_sums = [Sum(facts) for _ in number], [Sum(facts) for _ in number]
        # Of each block: what enters it and its gradients, those of the sum, and its parts as they ran.
        self._x, self._of_x, self._of_sum = ([Strip(facts.dim) for _ in number] for _ in range(3))
        self._firsts_of: list[dict[Range, Dense]] = [{} for _ in number]
        self._seconds_of: list[dict[Range, Dense]] = [{} for _ in number]
        self._keys = [Kept() for _ in number]

    def attend(self, first: int, last: int, piece: int = 0) -> None:
        """Run block `piece` up to this rank's part of the sum over heads."""
        block = self.blocks[piece]
        leaves = self._entered(first, last) if piece == 0 else self._met(piece - 1, first, last)
        with torch.enable_grad():
            x = self._opened(leaves) if piece == 0 else _closed(self.blocks[piece - 1], *leaves)
            tokens = block.enter(x)
        self._x[piece].put(first, last, x.detach())
        self._firsts_of[piece][first, last] = Dense(leaves, [x, tokens])
        inner = leaf_of(tokens)
        earlier = self._keys[piece].before(first) if self._along_tokens else []
        past = Past(earlier, causal=block.causal, rotary=self._rotary(first, last))  # type: ignore[arg-type]
        with torch.enable_grad():
            part = block.last.product(block.heads(inner, past), None)
        self.sums[piece].put(first, last, part.detach())
        gave = [part]
        if self._along_tokens:
            self._keys[piece].put(first, last, past.made)
            gave += [one for made in past.made for one in made]
        self._seconds_of[piece][first, last] = Dense([inner, *(one for pair in earlier for one in pair)], gave)

    def _met(self, place: int, first: int, last: int) -> list[Tensor]:
        """Return what entered a block and the sum over its heads, as leaves."""
        return [leaf_of(self._x[place].get(first, last)), leaf_of(self.sums[place].get(first, last))]

    def _attended(self, first: int, last: int) -> tuple[list[Tensor], Tensor]:
        leaves = self._met(len(self.blocks) - 1, first, last)
        h = _left(self.blocks[-1], *leaves)
        self.h.put(first, last, h.detach())
        return leaves, h

    def _into_attention(self, first: int, last: int, found: Sequence[Tensor]) -> None:
        self._into(len(self.blocks) - 1, first, last, found)

    def _into(self, place: int, first: int, last: int, found: Sequence[Tensor]) -> None:
        self._of_x[place].put(first, last, found[0])
        self._of_sum[place].put(first, last, found[1])

    def attend_backward(self, first: int, last: int, ready: tuple[str, ...], piece: int = 0) -> None:
        """Gradients of the first part of block `piece`, and of the second part of the one before it."""
        for begin, end in inside(self._firsts_of[piece], first, last) if piece < len(self.blocks) else ():
            dense = self._firsts_of[piece].pop((begin, end))
            gradients = [self._of_x[piece].get(begin, end), self.of_sums[piece].get(begin, end)]
            found = self._differentiated(dense, gradients, "attend")
            if piece:
                self._into(piece - 1, begin, end, found)
            else:
                self._hand_back(begin, end, found)
        for begin, end in inside(self._seconds_of[piece - 1], first, last) if piece else ():
            self._seconds_backward(piece - 1, begin, end)
        self._publish(ready)

    def _seconds_backward(self, place: int, first: int, last: int) -> None:
        dense = self._seconds_of[place].pop((first, last))
        gradients = [self._of_sum[place].get(first, last)]
        if self._along_tokens:
            gradients += self._keys[place].gradients(first, last, dense.gave[1:])
        found = self._differentiated(dense, gradients, "attend")
        self.of_sums[place].put(first, last, found[0])
        self._keys[place].add(first, last, found[1:])


def _left(block: Block, x: Tensor, total: Tensor) -> Tensor:
    """Return the residual stream behind a block's attention, from what entered the block and the sum over heads."""
    bias: Any = block.last.bias
    return block.leave(x, total if bias is None else total + bias.to(total.dtype))


def _closed(block: Block, x: Tensor, total: Tensor) -> Tensor:
    """Return what a block without a mixture gives to the next one."""
    h = _left(block, x, total)
    return block.close(h, block.dense(block.feed(h)))
