"""What an unquoted word of YAML means. One rule, for files and for overrides of the command line.

It follows YAML 1.2: `true` and `false` are the only booleans (`on`, `off`, `yes`, `no` are text), `1e-3` is a number,
dates and `12:30:45` are text. A number with a leading zero (`010`) is text, because its readers disagree on its value.
"""

from __future__ import annotations

import math
import re

from orch.errors import clipped
from orch.recipe.tree import Scalar

_DIGITS = r"[0-9]+(?:_[0-9]+)*"
_DECIMAL = r"(?:0|[1-9][0-9]*(?:_[0-9]+)*)"
_INT = re.compile(rf"[-+]?(?:{_DECIMAL}|0x[0-9a-fA-F]+(?:_[0-9a-fA-F]+)*|0o[0-7]+(?:_[0-7]+)*|0b[01]+(?:_[01]+)*)")
_FLOAT = re.compile(rf"[-+]?(?:\.{_DIGITS}|{_DECIMAL}(?:\.(?:{_DIGITS})?)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: dict[str, Scalar] = {"": None, "~": None, "null": None, "true": True, "false": False}
_NON_FINITE = {
    f"{sign}.{word}": float(f"{sign}{value}")
    for value, words in {"inf": ("inf", "Inf", "INF")}.items()
    for word in words
    for sign in ("", "+", "-")
} | {f".{word}": math.nan for word in ("nan", "NaN", "NAN")}

_LONGEST_NUMBER = 400
# 64 bits, as most readers of YAML and JSON have; what is counted or multiplied further still fits a float.
_LARGEST_INT = 2**63 - 1


def read_scalar(text: str) -> Scalar:
    """Return the value of an unquoted scalar. Raises ValueError for a number that Python cannot hold truthfully."""
    if text in _WORDS:
        return _WORDS[text]
    if text in _NON_FINITE:
        return _NON_FINITE[text]
    if _INT.fullmatch(text):
        if len(text) > _LONGEST_NUMBER:
            raise ValueError(f"{clipped(text, 20)} is a number of {len(text)} characters, more than orch can hold")
        value = int(text, 0) if len(text.lstrip("+-")) > 1 else int(text)
        if abs(value) > _LARGEST_INT:
            raise ValueError(f"{clipped(text, 30)} is larger than any whole number orch can hold (about 9.2e18)")
        return value
    if _FLOAT.fullmatch(text):
        return _float(text)
    return text


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{clipped(text, 30)} is larger than any number orch can hold (about 1.8e308)")
    mantissa = re.split("[eE]", text)[0]
    if value == 0.0 and re.search("[1-9]", mantissa):
        raise ValueError(f"{clipped(text, 30)} is smaller than any number orch can hold (about 5e-324)")
    return value
