"""Rows as int8: eight bits a number between the smallest and the largest of their row. Lossy.

Helps: exchanges that take long; about a fourth of fp32's bytes. Does not: rows with outliers, small language models (the
paper's own perplexity rises from 106.8 to 110.4), networks as fast as memory.
Source: ScheMoE (Shi et al., EuroSys 2024; repository): q = (x - m) / s * 255. A row carries its m and s, so one exchange in
place of three, and rounds to nearest, which halves the error, unless told to truncate as the repository does (both ours).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from orch.plan import PackRows, Plan, UnpackRows
from orch.technique import Context, Knobs, Slot, Technique, choice, flag
from techniques.moe._codec import coded

RANGE_BYTES = 8


class Config(Knobs):
    """What is written so, and how it is rounded."""

    gradients: bool = flag(True, "the gradients of rows too, in backward")
    rounding: Literal["nearest", "down"] = choice("nearest", "nearest; or down, as the authors' repository has it")


@dataclass(frozen=True, slots=True)
class Pack(PackRows):
    """[Q, M] -> bytes [Q, M + 8]: the numbers, then the smallest one and the range, fp32."""

    rounding: str = field(default="nearest", metadata={"unsaid": True})

    def encode(self, rows: Any) -> Any:
        from techniques.moe.int8_rows_kernels import encode

        return encode(rows, down=self.rounding == "down")


@dataclass(frozen=True, slots=True)
class Unpack(UnpackRows):
    """Bytes [Q, M + 8] -> [Q, M]."""

    def decode(self, packed: Any) -> Any:
        from techniques.moe.int8_rows_kernels import decode

        return decode(packed)


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Put a packing before and an unpacking behind every exchange of rows."""
    pack = partial(Pack, rounding=config.rounding)
    return coded(plan, pack, Unpack, lambda hidden: (hidden + RANGE_BYTES, "uint8"), gradients=config.gradients)


technique = Technique(
    name="int8-rows",
    slot=Slot.CODEC,
    rewrite=rewrite,
    source="10.1145/3627703.3650083",
    lossless=False,
    config=Config,
)
