"""What one rank saw of a block of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orch.models.load import Load, added


@dataclass(frozen=True)
class Block:
    """Per step the loss and seconds, in order; sentences where it differed from its plan.

    `payload_bytes` is what a step handed to collectives on average, as recorded; `loads` are those of mixtures' experts,
    by this rank's tokens; `peak_bytes` is the most memory that the stack took, where it was measured.
    """

    losses: tuple[float, ...]
    step_times_s: tuple[float, ...]
    differences: tuple[str, ...]
    payload_bytes: float
    loads: Mapping[str, Load] = field(default_factory=dict)
    peak_bytes: int | None = None


def joined(parts: Sequence[Block]) -> Block:
    """Return the parts of a block that was cut as one."""
    steps = sum(len(part.losses) for part in parts)
    return Block(
        tuple(loss for part in parts for loss in part.losses),
        tuple(seconds for part in parts for seconds in part.step_times_s),
        tuple(text for part in parts for text in part.differences),
        sum(part.payload_bytes * len(part.losses) for part in parts) / max(1, steps),
        added(part.loads for part in parts),
        most_held(parts),
    )


def most_held(blocks: Sequence[Block]) -> int | None:
    """Return the most memory that any of them took, None where nobody measured it."""
    return max((block.peak_bytes for block in blocks if block.peak_bytes is not None), default=None)
