"""What a run measured about itself, as JSON that gives the same values again, to the last bit.

Dataclasses and named tuples of orch become `{"is": "module:Name", fields}`. Reading makes such values and nothing else, so a file
that somebody changed can be wrong but cannot run anything.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

_OURS = "orch."


def to_data(value: Any) -> Any:
    """Return `value` as JSON types. TypeError names a kind of value that this cannot hold."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {"is": _path(value)} | {name: to_data(item) for name, item in value._asdict().items()}
    if isinstance(value, tuple | list | range):
        return {"tuple": [to_data(item) for item in value]}
    if isinstance(value, Mapping):
        return {"mapping": [[to_data(key), to_data(item)] for key, item in value.items()]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: to_data(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
        return {"is": _path(value)} | fields
    item = getattr(value, "item", None)  # numpy's scalars
    if callable(item) and getattr(value, "shape", None) == ():
        return to_data(item())
    raise TypeError(f"{type(value).__name__} cannot be kept")


def from_data(data: Any) -> Any:
    """Return the value that `to_data` wrote. ValueError: not its form, or a kind that is no value of orch."""
    if not isinstance(data, dict):
        return data
    if "tuple" in data:
        return tuple(from_data(item) for item in data["tuple"])
    if "mapping" in data:
        return {from_data(key): from_data(item) for key, item in data["mapping"]}
    kind = _kind(str(data.get("is")))
    try:
        return kind(**{name: from_data(item) for name, item in data.items() if name != "is"})
    except TypeError as error:
        raise ValueError(str(error)) from error


def _path(value: object) -> str:
    return f"{type(value).__module__}:{type(value).__qualname__}"


def _kind(path: str) -> type[Any]:
    module, _, name = path.partition(":")
    try:
        kind = getattr(importlib.import_module(module), name) if module.startswith(_OURS) else None
    except (ImportError, AttributeError):
        kind = None
    named = isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")
    if not isinstance(kind, type) or not (named or dataclasses.is_dataclass(kind)):
        raise ValueError(f"{path!r} is no value of orch")
    return kind
