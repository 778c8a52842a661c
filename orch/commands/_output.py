"""How commands show things: text for people on standard output, one JSON document for programs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from os import PathLike, fspath


def say(text: str = "") -> None:
    """Print a line for a person on standard output."""
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """Print a line on standard error: progress and remarks, which are never part of a result."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an aligned text table; columns that hold only numbers are aligned to the right."""
    texts = [["" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(len(line[column]) for line in [list(headers), *texts]) for column in range(len(headers))]
    numeric = [bool(texts) and all(_is_number(row[column]) for row in texts) for column in range(len(headers))]

    def line(cells: Sequence[str]) -> str:
        parts = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, numeric, strict=True)
        ]
        return "  ".join(parts).rstrip()

    return "\n".join([line(list(headers)), line(["-" * width for width in widths]), *(line(row) for row in texts)])


def dump(document: object) -> str:
    """Return `document` as JSON text. Numbers that JSON cannot say become the strings "NaN", "Infinity", "-Infinity"."""
    return json.dumps(plain(document), indent=2, ensure_ascii=False, allow_nan=False)


def plain(value: object) -> object:
    """Return `value` in JSON's own types; raises TypeError, naming the type, for what has no such form."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _non_finite(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Set):
        return sorted((plain(item) for item in value), key=str)
    return _plain_object(value)


def _plain_object(value: object) -> object:
    if isinstance(value, PathLike):
        return fspath(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    for convert in ("model_dump", "tolist"):  # pydantic models; NumPy scalars and arrays, torch tensors
        method = getattr(value, convert, None)
        if callable(method):
            return plain(method())
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _non_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _is_number(text: str) -> bool:
    try:
        float(text.rstrip("%x"))
    except ValueError:
        return text in ("", "-")
    return True
