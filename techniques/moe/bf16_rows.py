"""Rows as bf16: half the bytes of fp32 between the ranks that hold experts, rounded to eight bits of mantissa. Lossy.

Helps: exchanges that take long, rows in fp32. Does not: rows that are bf16 already, networks as fast as memory.
Source: ScheMoE (Shi et al., EuroSys 2024) casts to fp16 here (paper and repository); bf16 has fp32's range, so no gradient
of a row overflows (ours).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orch.plan import PackRows, Plan, UnpackRows
from orch.technique import Context, Knobs, Slot, Technique, flag
from techniques.moe._codec import coded


class Config(Knobs):
    """What is written so."""

    gradients: bool = flag(True, "the gradients of rows too, in backward")


@dataclass(frozen=True, slots=True)
class Pack(PackRows):
    """[Q, M] -> bytes [Q, 2M]."""

    def encode(self, rows: Any) -> Any:
        from techniques.moe.bf16_rows_kernels import encode

        return encode(rows)


@dataclass(frozen=True, slots=True)
class Unpack(UnpackRows):
    """Bytes [Q, 2M] -> [Q, M]."""

    def decode(self, packed: Any) -> Any:
        from techniques.moe.bf16_rows_kernels import decode

        return decode(packed)


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Put a cast before and behind every exchange of rows."""
    return coded(plan, Pack, Unpack, lambda hidden: (hidden, "bf16"), gradients=config.gradients, passes=2)


technique = Technique(
    name="bf16-rows",
    slot=Slot.CODEC,
    rewrite=rewrite,
    source="10.1145/3627703.3650083",
    lossless=False,
    config=Config,
)
