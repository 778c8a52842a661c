"""Which rows of a layer a task is about: some of its positions, and where ranks take turns, those for some of the ranks.

In turn t of n, the P ranks that share experts out are n groups of P/n neighbours, and a rank's rows go to the group that
stands t groups behind its own (in a ring), while it gets those of the group t before it. Turn 0 is its own group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from orch.cluster import Cluster, Span


class Chunk(NamedTuple):
    """Rows at positions `begin` to `end`, of turn `turn` of `turns`."""

    begin: int
    end: int
    turn: int = 0
    turns: int = 1

    def meant_for(self, place: int, ranks: int) -> range:
        """Return to which of `ranks` ranks the one at `place` sends rows of this chunk to experts."""
        return self._group(place // (ranks // self.turns) + self.turn, ranks)

    def sent_by(self, place: int, ranks: int) -> range:
        """Return from which ranks it gets them."""
        return self._group(place // (ranks // self.turns) - self.turn, ranks)

    def _group(self, number: int, ranks: int) -> range:
        size = ranks // self.turns
        first = number % self.turns * size
        return range(first, first + size)


def turn_s(nbytes: Any, turn: int, turns: int, cluster: Cluster, span: Span) -> Any:
    """Return the seconds of an exchange of `nbytes` a rank in one turn: those of an all-to-all that moves as many bytes, apart
    inside nodes and between them where groups are whole nodes; else as if all pairs of ranks were alike.
    """
    from orch.cluster import Span
    from orch.cluster.curves import above_zero

    whole, group = nbytes * turns, span.size // turns
    near = span.per_node if span.nodes > 1 and group % span.per_node == 0 else 1
    node = Span(near, 1, near)

    def far_s(ranks: int) -> Any:
        if ranks == 0:
            return 0.0
        moved = whole * ranks / (span.size - near)
        return above_zero(cluster.all_to_all_s(moved, span) - cluster.all_to_all_s(moved * near / span.size, node))

    if turn:
        return far_s(group)
    return cluster.all_to_all_s(whole * near / span.size, node) + far_s(group - near)
