"""Rows without loss: a three-bit code in place of each number's exponent, where it is one of seven that the row mostly has.

Helps: rows in bf16, of which about 11.2 of 16 bits travel; links slower than packing. Does not: fp32 (27.2 of 32 bits),
networks as fast as memory, few rows, where telling sizes first costs more than it saves; on CPUs links above some 100 Mbit/s a
core, as the kernels here pack 100 to 200 MB/s. Lossless, bit-equal.
Source: ZipCCL (Lin et al., arXiv:2604.27844: abstract seen, no code of the authors), whose layout is known from a third party's
repository: seven neighbouring exponents, code 0 for all others, which stand behind with eight bits each; sizes are told before
the bytes; a part that does not get smaller travels as it is. Ours: a window for each row, by the mean magnitude of its
numbers; codes eight in three bytes; parts without a header, as readers know how many rows come; fp32 and fp16. What a plan
expects to travel is derived for normal numbers; the record has the real bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orch.plan import PackRows, Plan, UnpackRows
from orch.technique import Context, Knobs, Slot, Technique, flag
from techniques.moe._codec import coded_apart

# Of normal numbers 2.45 % escape from a window of seven exponents, on average over scales: eight bits more for each.
# Sign and mantissa, three bits, and those: of 32, 16 and 16 bits. A byte a row is not in it.
TRAVELS = {"fp32": 850, "bf16": 700, "fp16": 887}
# Reads and writes of a row's size in the kernels here, of which each is one pass of torch; fused ones would read and write once.
PASSES = (14, 12)


class Config(Knobs):
    """What is written so."""

    gradients: bool = flag(True, "the gradients of rows too, in backward")


@dataclass(frozen=True, slots=True)
class Pack(PackRows):
    """[Q, M] -> bytes [B, 1], a part a rank."""

    def packed(self, rows: Any, counts: Callable[[], list[int]]) -> tuple[Any, list[int] | None]:
        from techniques.moe.zipccl_rows_kernels import encode

        return encode(rows, counts(), self.dtype)


@dataclass(frozen=True, slots=True)
class Unpack(UnpackRows):
    """Bytes [B, 1] -> [Q, M]."""

    def unpacked(self, packed: Any, counts: Callable[[], list[int]], sizes: list[int] | None) -> Any:
        from techniques.moe.zipccl_rows_kernels import decode

        assert sizes is not None
        return decode(packed, counts(), sizes, self.hidden, self.dtype)


def travels(dtype: str) -> tuple[int, str]:
    """Return how many of a thousand bytes are expected to travel, and what that rests on."""
    return TRAVELS[dtype], f"rows packed to {TRAVELS[dtype] / 10:g} % of their bytes (derived for normal numbers)"


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Put a packing before and an unpacking behind every exchange of rows, and tell sizes in between."""
    return coded_apart(plan, Pack, Unpack, travels, gradients=config.gradients, passes=PASSES)


technique = Technique(
    name="zipccl-rows",
    slot=Slot.CODEC,
    rewrite=rewrite,
    source="arXiv:2604.27844",
    lossless=True,
    config=Config,
    excludes={"two-level-a2a": "its relays would have to be told the sizes of what they pass on"},
)
