"""How many rows of a mixture come from whom for which expert, at which positions: from this follows where each is kept.

Letters: S sources, E experts, K cells (positions cut wherever a chunk begins).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from orch.models.zoo.mixture import Rows
from orch.plan import Chunk

Cell = tuple[int, int]


class Table:
    """Rows by source [S], expert [E] and cell [K], kept expert after expert, then by source, then by position.

    `marks` says of a chunk whose rows it has: [S, 1] or [1, E] of ones and zeros, None: all.
    """

    def __init__(self, tally: Tensor, cells: Sequence[Cell], marks: Callable[[Chunk], Tensor | None]) -> None:
        self.tally = tally
        self._marks = marks
        self._first = {begin: number for number, (begin, _) in enumerate(cells)}
        self._last = {end: number + 1 for number, (_, end) in enumerate(cells)}
        totals = tally.sum(2)
        flat = totals.T.reshape(-1)
        self._base = (flat.cumsum(0) - flat).view(tally.shape[1], tally.shape[0]).T
        self._offset = tally.cumsum(2) - tally
        self._places: dict[Chunk, Tensor] = {}

    @staticmethod
    def of(rows: Rows, cells: Sequence[Cell], marks: Callable[[Chunk], Tensor | None]) -> Table:
        """Return the table of one source's `rows`, whose positions count from the first cell's begin."""
        begins = torch.tensor([begin - cells[0][0] for begin, _ in cells[1:]], dtype=torch.int64)
        cell = torch.bucketize(rows.position.cpu(), begins, right=True)
        experts = rows.counts.numel()
        expert = torch.repeat_interleave(torch.arange(experts), rows.counts.cpu())
        tally = torch.bincount(expert * len(cells) + cell, minlength=experts * len(cells))
        return Table(tally.view(1, experts, len(cells)), cells, marks)

    def cells_of(self, chunk: Chunk) -> Cell:
        """Return the cells of a chunk's positions: from, to."""
        return self._first[chunk.begin], self._last[chunk.end]

    def _cut(self, chunk: Chunk) -> Tensor:
        first, last = self.cells_of(chunk)
        cut = self.tally[:, :, first:last].sum(2)
        marks = self._marks(chunk)
        return cut if marks is None else cut * marks

    def per_expert(self, chunk: Chunk) -> list[int]:
        """Return the rows of each expert in a chunk."""
        counts: list[int] = self._cut(chunk).sum(0).tolist()
        return counts

    def per_source(self, chunk: Chunk) -> list[int]:
        """Return the rows of each source in a chunk."""
        counts: list[int] = self._cut(chunk).sum(1).tolist()
        return counts

    def places(self, chunk: Chunk) -> Tensor:
        """Return where rows of a chunk are kept, in the order they travel: by source, then expert, then position."""
        if chunk not in self._places:
            lengths = self._cut(chunk).reshape(-1)
            starts = (self._base + self._offset[:, :, self._first[chunk.begin]]).reshape(-1)
            first = lengths.cumsum(0) - lengths
            within = torch.arange(int(lengths.sum())) - torch.repeat_interleave(first, lengths)
            self._places[chunk] = torch.repeat_interleave(starts, lengths) + within
        return self._places[chunk]
