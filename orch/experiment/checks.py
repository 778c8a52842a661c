"""What makes the figures of a run worthless, and so ends it."""

from __future__ import annotations

from collections.abc import Sequence

from orch.errors import RunError
from orch.runtime.block import Block


def refuse_differences(cell: str, ranks: Sequence[Block]) -> None:
    """Raise RunError (E610) for a rank that did not do what its plan says: its figures would be about nothing."""
    for rank, block in enumerate(ranks):
        if block.differences:
            more = f" (and {len(block.differences) - 1} more)" if len(block.differences) > 1 else ""
            message = f"{cell}: rank {rank} did not run its plan: {block.differences[0]}{more}"
            raise RunError(message, code="E610", hint="report it: the technique or the runtime is at fault")


def refuse_unequal(cell: str, prints: Sequence[str]) -> None:
    """Raise RunError (E611) for ranks whose parameters have other fingerprints than rank 0's."""
    odd = [rank for rank, value in enumerate(prints) if value != prints[0]]
    if odd:
        message = f"{cell}: after training, rank {odd[0]} holds other parameters than rank 0"
        raise RunError(message, code="E611", hint="the techniques of this stack do not do the same on every rank")
