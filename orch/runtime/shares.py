"""A mixture of which each of some ranks crosses a share, where all of them routed the same tokens: which rows are whose.

Positions are shared out evenly, in order: slots where experts have a capacity (the last share may hold slots that do not
exist, which stay empty), tokens where no token is dropped. Letters: m ranks, R rows of all, S rows of a share, M their width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from orch.models.zoo.mixture import NOTHING, Rows
from orch.plan import Chunk

Places = Callable[[Chunk], Tensor]


class Shares:
    """The rows of all ranks' shares. `positions`: of one share."""

    def __init__(self, rows: Rows, ranks: int, place: int, positions: int, experts: int, *, slots: bool) -> None:
        self._number = rows.route.numel()
        self._indices = [_index(rows, positions, experts, begin * positions, slots=slots) for begin in range(ranks)]
        self._parts = [
            _part(rows, index, positions, experts, number * positions, slots=slots)
            for number, index in enumerate(self._indices)
        ]
        self._place = place
        self._came: list[tuple[Chunk, Tensor]] = []

    @property
    def rows(self) -> Rows:
        """The rows of this rank's share."""
        return self._parts[self._place]

    def all_rows(self) -> list[Rows]:
        """Return the rows of every share, by rank."""
        return self._parts

    def own(self, rows: Tensor) -> Tensor:
        """Return those of this rank's share [S, M] of all `rows` [R, M]; 0 where a slot does not exist."""
        index = self._indices[self._place].to(rows.device)
        taken = rows.index_select(0, index.clamp(min=0))
        return taken * (index >= 0).unsqueeze(1)

    def came(self, chunk: Chunk, rows: Tensor) -> None:
        """Note that `rows` [m S', M] are those of all shares at the positions of `chunk` in each."""
        self._came.append((chunk, rows))

    def whole(self, like: Tensor, places: Sequence[Places]) -> Tensor:
        """Return all rows [R, M] from what came; `places[j](chunk)`: where such rows of share j are kept in it."""
        result = like.new_zeros(self._number, like.shape[1])
        for chunk, rows in self._came:
            parts = rows.view(len(self._indices), -1, rows.shape[1])
            for index, at, part in zip(self._indices, places, parts, strict=True):
                where = index[at(chunk)]
                kept = where >= 0
                result[where[kept].to(rows.device)] = part[kept.to(rows.device)]
        self._came.clear()
        return result


def _index(rows: Rows, positions: int, experts: int, begin: int, *, slots: bool) -> Tensor:
    """Return which rows make the share that begins at a position, `NOTHING` where a slot does not exist."""
    if not slots:
        position = rows.position.cpu()
        return torch.nonzero((position >= begin) & (position < begin + positions)).view(-1)
    capacity = rows.route.numel() // experts
    slot = torch.arange(begin, begin + positions)
    index = torch.arange(experts).unsqueeze(1) * capacity + slot
    return torch.where(slot < capacity, index, NOTHING).view(-1)


def _part(rows: Rows, index: Tensor, positions: int, experts: int, begin: int, *, slots: bool) -> Rows:
    """Return a share as rows, positions counted from its begin."""
    device = rows.route.device
    at = index.clamp(min=0).to(device)
    exists = (index >= 0).to(device)
    route, token = (torch.where(exists, values[at], NOTHING) for values in (rows.route, rows.token))
    kind: Callable[..., Rows] = type(rows)
    if slots:
        position = torch.arange(positions, device=device).repeat(experts)
        return kind(route, token, position, torch.full((experts,), positions, device=device))
    expert = torch.repeat_interleave(torch.arange(experts, device=device), rows.counts)
    counts = torch.bincount(expert[at], minlength=experts)
    return kind(route, token, rows.position[at] - begin, counts)
