"""Units are part of a value: `25MiB`, `50us`, `200Mbit`, `1.6ns/B`. In Python every quantity is an SI float.

A bare number where a unit belongs is an error, and so is an ambiguous unit (`25Gb`: gigabit or gigabyte?).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
# Two characters look like micro: U+00B5 of keyboards and U+03BC, the Greek letter.
_TIME = {"ns": 1e-9, "us": 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_BYTES = {prefix + "B": factor for prefix, factor in (_DECIMAL | _BINARY).items()}
_BITS_PER_S = {prefix + "bit": factor / 8 for prefix, factor in _DECIMAL.items()}
_BYTES_PER_S = {f"{unit}/s": factor for unit, factor in _BYTES.items()}
_RATES = _BYTES_PER_S | _BITS_PER_S | {f"{unit}/s": factor for unit, factor in _BITS_PER_S.items()}
_PER_BYTE = {f"{unit}/B": factor for unit, factor in _TIME.items()}
_FLOPS = {f"{prefix}FLOP/s": factor for prefix, factor in _DECIMAL.items()}

_NUMBER = re.compile(r"([+-]?(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Dimension:
    """What a quantity measures: its SI unit, the unit spellings it accepts, and an example for messages."""

    name: str
    si: str
    units: dict[str, float] = field(hash=False)  # hashable, so that `Bytes | None` can be written
    example: str

    def parse(self, value: object) -> float:
        """Return `value` in SI units. Raises ValueError, in one sentence, for a missing, unknown or ambiguous unit."""
        if isinstance(value, Quantity):
            return float(value)
        match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            shown = _shown(value)
            raise ValueError(f"{shown} is not a {self.name}; write a number with its unit, such as {self.example}")
        number, unit = match.groups()
        if not unit:
            raise ValueError(f"{number} has no unit; a {self.name} is written with one, such as {self.example}")
        if unit not in self.units:
            raise ValueError(self._unknown(number, unit))
        result = float(number.replace("_", "")) * self.units[unit]
        if not math.isfinite(result):
            raise ValueError(f"{value} is too large for a {self.name}")
        if result < 0:
            raise ValueError(f"{value} is negative; a {self.name} is not")
        return result

    def _unknown(self, number: str, unit: str) -> str:
        sized = "B" in self.units or "B/s" in self.units
        if sized and re.fullmatch(r"[kKMGTP]?i?b(/s|ps)?", unit):
            prefix = unit.split("b")[0]
            amount = f"{number}{prefix}B{'' if 'B' in self.units else '/s'}"
            return f"{number}{unit} is ambiguous; write {amount} (bytes) or {number}{prefix.rstrip('i')}bit (bits)"
        if unit.lower() == "m" and "ms" in self.units:
            return f"{number}{unit} is ambiguous; write {number}ms (milliseconds) or {number}min (minutes)"
        if f"{unit}/s" in self.units:
            return f"{number}{unit} is an amount, not a {self.name}; did you mean {number}{unit}/s?"
        folded = {known.lower(): known for known in reversed(self.units)}
        near = folded.get(unit.lower())
        hint = f"did you mean {number}{near}?" if near is not None else f"write for example {self.example}"
        return f"{unit!r} is not a unit of a {self.name}; {hint}"


class Quantity(float):
    """An SI float that has already been read from a unit, so that reading it again is the identity."""


BYTES = Dimension("size", "B", _BYTES, "25MiB")
SECONDS = Dimension("time", "s", _TIME, "50us")
BYTES_PER_SECOND = Dimension("rate", "B/s", _RATES, "200Mbit")
SECONDS_PER_BYTE = Dimension("inverse bandwidth", "s/B", _PER_BYTE, "1.6ns/B")
FLOPS_PER_SECOND = Dimension("compute rate", "FLOP/s", _FLOPS, "10TFLOP/s")
FRACTION = Dimension("fraction", "", {"%": 0.01}, "5%")
DIMENSIONS = (BYTES, SECONDS, BYTES_PER_SECOND, SECONDS_PER_BYTE, FLOPS_PER_SECOND, FRACTION)
"""All of them; no unit belongs to two."""


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    return repr(value) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


def parse_fraction(value: object) -> float:
    """Return a fraction in [0, 1]: a plain number, or a percentage such as `5%`."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        result = float(value)
    elif isinstance(value, str) and "%" in value:
        result = FRACTION.parse(value)
    else:
        try:
            result = float(str(value))
        except ValueError:
            raise ValueError(f"{_shown(value)} is not a fraction; write 0.05 or 5%") from None
    if isinstance(value, bool) or not 0.0 <= result <= 1.0:
        raise ValueError(f"{_shown(value)} is not a fraction; it must lie between 0 and 1 (or 0% and 100%)")
    return result


def _field(dimension: Dimension) -> tuple[BeforeValidator, WithJsonSchema]:
    schema = {"type": "string", "description": f"a {dimension.name} with its unit", "examples": [dimension.example]}
    return BeforeValidator(dimension.parse), WithJsonSchema(schema)


Bytes = Annotated[float, *_field(BYTES), BYTES]
Seconds = Annotated[float, *_field(SECONDS), SECONDS]
BytesPerSecond = Annotated[float, *_field(BYTES_PER_SECOND), BYTES_PER_SECOND]
SecondsPerByte = Annotated[float, *_field(SECONDS_PER_BYTE), SECONDS_PER_BYTE]
FlopsPerSecond = Annotated[float, *_field(FLOPS_PER_SECOND), FLOPS_PER_SECOND]
Fraction = Annotated[float, BeforeValidator(parse_fraction), FRACTION]


def _scaled(value: float, steps: list[tuple[float, str]]) -> str:
    base = next(unit for factor, unit in steps if factor == 1.0)
    if not math.isfinite(value) or value == 0:
        return f"{value:g} {base}"
    # The unit is chosen by the rounded number, so that 0.9999 s is not shown as 1e+03 ms.
    factor, unit = next((step for step in steps if abs(float(f"{value / step[0]:.3g}")) >= 1), steps[-1])
    number = value / factor
    return f"{number:.3g} {unit}" if abs(number) < 999.5 else f"{number:.0f} {unit}"


def format_count(number: int, what: str) -> str:
    """Return a count for people: `1 worker`, `4 workers`."""
    return f"{number} {what}{'s' * (number != 1)}"


def format_seconds(value: float) -> str:
    """Return a time for people: `12.3 ms`."""
    return _scaled(value, [(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")])


def format_bytes(value: float) -> str:
    """Return a size for people, in binary units: `25 MiB`."""
    return _scaled(value, [(2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")])
