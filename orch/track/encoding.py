"""JSON that tells the truth, written so that a reader sees the old file or the new one.

JSON knows no NaN. A float that is not finite is written as the string `"NaN"`, `"Infinity"` or `"-Infinity"` (the
convention of protobuf's JSON mapping: `float(...)` in Python and `Number(...)` in JavaScript read it). A text that
happens to spell one of these words gets an apostrophe in front, as in a spreadsheet, so nothing is lost.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import cast

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_ESCAPED = re.compile(r"'*(?:NaN|-?Infinity)")


def encode(value: object) -> object:
    """Return `value` as strict JSON data. Dataclasses, mappings, sequences, sets, paths and numpy scalars are read."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return "'" + value if _ESCAPED.fullmatch(value) else value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((encode(item) for item in value), key=str)
    if is_dataclass(value) and not isinstance(value, type):
        return encode(asdict(value))
    item = getattr(value, "item", None)  # numpy and torch scalars, without importing either
    if callable(item) and getattr(value, "shape", None) == ():
        return encode(item())
    return str(value)


def decode(data: object) -> object:
    """Return what `encode` was given, as far as JSON keeps it: tuples come back as lists, keys as strings."""
    if isinstance(data, str):
        if data in _WORDS:
            return _WORDS[data]
        return data[1:] if _ESCAPED.fullmatch(data) else data
    if isinstance(data, dict):
        return {key: decode(item) for key, item in data.items()}
    if isinstance(data, list):
        return [decode(item) for item in data]
    return data


def dumps(value: object, *, indent: int | None = None) -> str:
    """Return one strict JSON document."""
    return json.dumps(encode(value), allow_nan=False, ensure_ascii=False, indent=indent)


def loads(text: str) -> object:
    """Return the value of a document written by `dumps`. Raises ValueError when it is not JSON."""
    return decode(json.loads(text))


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step: a reader, also after a crash, sees one whole version."""
    write_bytes(path, text.encode("utf-8", errors="backslashreplace"))


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content` in one step, on disk before the name changes hands."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def write_json(path: Path, value: object) -> None:
    """Replace `path` by `value` as an indented document."""
    write_text(path, dumps(value, indent=1) + "\n")


def append_line(path: Path, value: object) -> None:
    """Append `value` to `path` as one line, in one write: a process that dies leaves the line whole or not there. Half a
    line, which a full disk leaves, stays by itself.
    """
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        size = os.fstat(handle).st_size
        torn = b"\n" if size and os.pread(handle, 1, size - 1) != b"\n" else b""
        os.write(handle, torn + (dumps(value) + "\n").encode("utf-8", errors="backslashreplace"))
    finally:
        os.close(handle)


def read_lines(path: Path) -> list[dict[str, object]]:
    """Return the mappings that `append_line` wrote to `path`, without a line that was left half written."""
    try:
        lines = path.read_text("utf-8", errors="replace").split("\n")
    except OSError:
        return []
    found: list[dict[str, object]] = []
    for line in lines:
        with suppress(ValueError):
            value = loads(line)
            if isinstance(value, dict):
                found.append(value)
    return found


def read_json(path: Path) -> dict[str, object]:
    """Return the mapping stored in `path`, or an empty one when it is absent, torn or something else."""
    try:
        value = loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _umask() -> int:
    # The only portable way to read it is to set it; mkstemp's 0600 would hide a shared run from colleagues.
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
