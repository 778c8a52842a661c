"""Packed rows whose bytes only the data know: what each rank's part takes, as written here and as told by those who sent it.

Parts are bytes end to end [B, 1], so an exchange moves them as rows of one byte, by the splits that were told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from orch.errors import RunError
from orch.plan import AllToAll, RowSizes
from orch.runtime.legs import OUT, Key, Legs, Parcel, Tallies


@dataclass
class Sizes:
    """The sizes of one mixture's parts in one step, by exchange and chunk."""

    _written: dict[Key, list[int]] = field(default_factory=dict)
    _told: dict[Key, Tensor] = field(default_factory=dict)

    def __contains__(self, key: Key) -> bool:
        """Whether the rows of an exchange are packed so."""
        return key in self._written

    def packed(self, key: Key, sizes: list[int] | None) -> None:
        """Note the bytes of each rank's part; None: all can tell them from the rows."""
        if sizes is not None:
            self._written[key] = sizes

    def parcel(self, op: RowSizes) -> Parcel:
        """Return what tells every rank the size of its part."""
        key = (op.of, op.chunk)
        sent = torch.tensor(self._written[key], dtype=torch.int64)
        self._told[key] = torch.empty_like(sent)
        return Parcel(sent, self._told[key], [], [])

    def came(self, key: Key) -> list[int] | None:
        """Return the bytes of each part that came; of rows that never left, those written here."""
        if key in self._told:
            sizes: list[int] = self._told[key].tolist()
            return sizes
        return self._written.get(key)

    def sized(self, op: AllToAll, legs: Legs, rows: Callable[[], Tensor], tallies: Tallies, row_bytes: int) -> Parcel:
        """Return what the leg `op` hands over and fills in bytes; `tallies` are those of the rows, of `row_bytes` each."""
        key = (op.part, op.chunk)
        sent, came = self._written[key], self.came(key)
        assert came is not None
        mine, theirs = (sent, came) if op.part in OUT else (came, sent)
        parcel = legs.parcel(op, rows, Tallies(mine, theirs, _no_relay))
        among = legs.among(op)
        leave, come = (tallies.mine, tallies.theirs) if op.part in OUT else (tallies.theirs, tallies.mine)
        own = tuple(row_bytes * sum(counts[rank] for rank in among) for counts in (leave, come))
        return replace(parcel, rows=(own[0], own[1]))


def _no_relay() -> list[list[int]]:
    raise RunError("packed rows of sizes that only the data know go by no relay", code="E616")
