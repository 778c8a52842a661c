"""Operations that cost the same, whatever they are about: those whose costs are asked for again and again are asked for once."""

from __future__ import annotations

from typing import Any

from orch.plan.experts import AllToAll, Expert, ExpertBackward, GatherRows, ScatterRows
from orch.plan.operations import Operation


def alike(op: Operation) -> object:
    """Return what `cost_s` makes of an operation, in one group: those of which it is equal cost the same.

    None: nobody says; of operations of others' kinds, and of many layers at once, whose sizes are arrays.
    """
    kind = type(op)
    if kind is AllToAll:
        return _of_exchange(op)
    if kind is GatherRows or kind is ScatterRows:
        return (kind, op.nbytes) if isinstance(op.nbytes, int) else None
    return _of_chunk(op) if kind is Expert or kind is ExpertBackward else None


def _of_exchange(op: Any) -> object:
    nbytes = op.nbytes
    if not isinstance(nbytes, int):
        return None
    return AllToAll, nbytes, op.algorithm, op.leg, op.neighbours, op.turn, op.turns, op.channels


def _of_chunk(op: Any) -> object:
    if not all(isinstance(size, int | float) for size in (op.flops, op.moved_bytes, op.end)):
        return None
    share = (op.flops, op.moved_bytes, op.seconds, op.products, op.positions, op.end - op.begin, op.turns, op.pieces)
    return (type(op), op.dtype, *share)
