"""How many bytes packed rows take, told to those who will read them: of a codec whose sizes only the data know.

Each rank's part is packed by itself. Its size travels first, in a group and on a stream of its own, so that no chunk's rows
wait behind the sizes of the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Self

from orch.plan.chunk import Chunk
from orch.plan.experts import Rows

if TYPE_CHECKING:
    from orch.cluster import Cluster, Span
    from orch.plan.buffers import Buffer

SIZES = "sizes"
"""The group, of the ranks that share experts out, in which sizes are told; `net.sizes` is the stream."""


@dataclass(frozen=True, slots=True)
class RowSizes(Rows):
    """One number for every rank of the group: the bytes of its part of what the exchange `of` hands over.

    `part` is no part of rows' way but says of which it tells; `turn`, `turns` as in `Chunk`.
    """

    kind: ClassVar[str] = "row_sizes"
    turn: int = field(default=0, metadata={"unsaid": True})
    turns: int = field(default=1, metadata={"unsaid": True})

    @property
    def of(self) -> str:
        """The part whose sizes are told."""
        return self.part.removeprefix(f"{SIZES}_")

    @property
    def chunk(self) -> Chunk:
        """The rows it is about."""
        return Chunk(self.begin, self.end, self.turn, self.turns)

    def cut(self, begin: int, end: int, *, name: str) -> Self:
        """Return what tells of positions `begin` to `end`: as many numbers."""
        return replace(self, buffer=self._named(name), begin=begin, end=end)

    def in_turn(self, turn: int, turns: int, *, name: str) -> Self:
        """Return what tells of one turn: as many numbers."""
        return replace(self, buffer=self._named(name), turn=turn, turns=turns)

    def _named(self, name: str) -> Buffer:
        (whole,) = self.buffer.segments
        return Rows.buffer_of(name, whole.numel, whole.dtype)

    def seconds_for(self, nbytes: float, cluster: Cluster, span: Span) -> float:
        seconds: float = cluster.all_to_all_s(nbytes, span)
        return seconds

    def wire_bytes(self, span: Span) -> float:
        return (span.size - 1) / span.size * self.nbytes
