"""Rows as block floating point: sixteen numbers share an exponent and have eight bits each. Lossy.

Helps: exchanges that take long; 17/64 of fp32's bytes, whatever the numbers' scale. Does not: networks as fast as memory.
Source: stands for the ZFP codec at 8 bits a value of ScheMoE (Shi et al., EuroSys 2024), which needs a library of its own and
blocks of 4 x 4 numbers across rows; blocks along a row are ours, so that rows may be cut and sent anywhere. It is not ZFP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orch.plan import PackRows, Plan, UnpackRows
from orch.technique import Context, Knobs, Slot, Technique, flag
from techniques.moe._codec import coded

BLOCK = 16


class Config(Knobs):
    """What is written so."""

    gradients: bool = flag(True, "the gradients of rows too, in backward")


@dataclass(frozen=True, slots=True)
class Pack(PackRows):
    """[Q, M] -> bytes [Q, M + ceil(M / 16)]: the numbers, then the exponents."""

    def encode(self, rows: Any) -> Any:
        from techniques.moe.bfp8_rows_kernels import encode

        return encode(rows, BLOCK)


@dataclass(frozen=True, slots=True)
class Unpack(UnpackRows):
    """Bytes [Q, M + ceil(M / 16)] -> [Q, M]."""

    def decode(self, packed: Any) -> Any:
        from techniques.moe.bfp8_rows_kernels import decode

        return decode(packed, self.hidden, BLOCK)


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Put a packing before and an unpacking behind every exchange of rows."""
    return coded(plan, Pack, Unpack, lambda hidden: (hidden + -(-hidden // BLOCK), "uint8"), gradients=config.gradients)


technique = Technique(
    name="bfp8-rows",
    slot=Slot.CODEC,
    rewrite=rewrite,
    source="10.1145/3627703.3650083",
    lossless=False,
    config=Config,
)
