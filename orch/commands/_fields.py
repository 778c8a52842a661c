"""Every field of a recipe and of a cluster file, walked out of the schemas: pages, `orch show FIELD` and completion."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from orch.commands._facts import Knob, knobs, unwrapped


@dataclass(frozen=True, slots=True)
class Described:
    """A field by its dotted path; `NAME` stands for a key the user chooses. `parts` are the fields below it."""

    path: str
    knob: Knob
    about: str
    parts: tuple[str, ...]


def recipe_fields() -> dict[str, Described]:
    """Return every field of a recipe by its dotted path, those of `cluster` included."""
    from orch.cluster import ClusterSpec
    from orch.recipe.schema import RecipeFile

    found = {field.path: field for field in _walk(RecipeFile, "")}
    return found | {field.path: field for field in _walk(ClusterSpec, "cluster.")}


def _walk(model: type[BaseModel], prefix: str) -> Iterator[Described]:
    for knob in knobs(model):
        info = model.model_fields[knob.name]
        inner, step = _inner(info.annotation)
        path = prefix + (info.alias or knob.name)
        below = list(_walk(inner, f"{path}.{step}")) if inner is not None and inner is not model else []
        depth = path.count(".") + 1 + step.count(".")
        parts = tuple(field.path for field in below if field.path.count(".") == depth)
        yield Described(path, knob, _doc(inner) if inner else "", parts)
        yield from below


def _inner(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """Return the section an annotation holds, and the placeholder for a key in between (`NAME.`)."""
    core, _ = unwrapped(annotation)
    if isinstance(core, type) and issubclass(core, BaseModel):
        return core, ""
    arguments = get_args(core)
    if get_origin(core) is dict:
        inner, step = _inner(arguments[1])
        return inner, f"NAME.{step}"
    return _inner(arguments[0]) if get_origin(core) in (list, tuple) else (None, "")


def _doc(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split())


def page(field: Described, fields: dict[str, Described]) -> str:
    """Return the page of one field: what it means, what it may hold, its default, and the fields below it."""
    from orch.commands._facts import wrapped
    from orch.commands._output import table

    knob = field.knob
    lines = [field.path, ""]
    lines += [wrapped(text) for text in (knob.doc, field.about) if text]
    lines += ["", f"  type     {knob.allowed()}", f"  default  {knob.shown}"]
    if knob.unit:
        lines.append(f"  unit     written with it; {knob.unit} in Python and JSON")
    if field.parts:
        rows = [_row(fields[part]) for part in field.parts]
        lines += ["", table(["  field", "type", "default", "meaning"], rows)]
    return "\n".join(lines)


def overview(fields: dict[str, Described]) -> str:
    """Return every field of a recipe, one line each."""
    from orch.commands._output import table

    rows = [_row(field) for field in fields.values()]
    return table(["  field", "type", "default", "meaning"], rows)


def _row(field: Described) -> list[str]:
    return [f"  {field.path}", field.knob.allowed(), field.knob.shown, field.knob.doc]


def find(path: str, fields: dict[str, Described]) -> list[Described]:
    """Return the fields a user may mean: the exact path, with a key of theirs for NAME, or else every path's end."""
    if path in fields:
        return [fields[path]]
    wanted = path.split(".")
    for name, field in fields.items():
        parts = name.split(".")
        if len(parts) == len(wanted) and all(p in ("NAME", w) for p, w in zip(parts, wanted, strict=True)):
            return [field]
    return [field for name, field in fields.items() if name.endswith(f".{path}")]
