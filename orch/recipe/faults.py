"""Turn what pydantic refuses into one error with the place in the file, the value found and what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from orch.errors import OrchError, Position, clipped, did_you_mean, quoted
from orch.recipe.overrides import is_override
from orch.recipe.tree import Node, Path, dotted, kind, mapping, sequence

_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "string_type": "text",
    "string_too_short": "text, not empty",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list: [a, b]",
    "tuple_type": "a list: [a, b]",
    "finite_number": "a finite number",
}
_SECTION = ("dict_type", "model_type", "model_attributes_type")
_BOUNDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}


def checked(build: Callable[[Any], Any], tree: Node, prefix: Path = (), model: type[BaseModel] | None = None) -> Any:
    """Return build(plain value of `tree`). Its pydantic errors become the OrchError that comes first in the file.

    `prefix` is the path of `tree` in the recipe; `model` knows the allowed keys. An unquoted number where text is
    wanted is taken as it was written (`1.10` stays 1.10), so the schema decides what a word means.
    """
    try:
        return _unbent(build(tree.plain()), tree, prefix)
    except ValidationError as error:
        texts = [_path(tree, item["loc"]) for item in error.errors(include_url=False) if item["type"] == "string_type"]
        as_written = tree
        for path in texts:
            as_written = _as_text(as_written, path)
        try:
            return _unbent(build(as_written.plain()), as_written, prefix)
        except ValidationError as second:
            errors = [_fault(as_written, item, prefix, model) for item in second.errors(include_url=False)]
            raise min(errors, key=_order) from None


def _unbent(value: Any, node: Node, path: Path) -> Any:
    """Return `value`, unless `true` or `false` was taken for a number: to Python, and to pydantic, they are 1 and 0."""
    if isinstance(node.value, bool) and isinstance(value, (int, float)) and not isinstance(value, bool):
        message = f"{_named(dotted(path), node)}must be a number; it is {kind(node)}"
        raise OrchError(message, code="E212", where=node.where)
    inner = value.__dict__ if isinstance(value, BaseModel) else value
    for key, below in node.items():
        if isinstance(inner, Mapping):
            _unbent(inner.get(key), below, (*path, key))
        elif isinstance(inner, (list, tuple)) and int(key) < len(inner):
            _unbent(inner[int(key)], below, (*path, key))
    return value


def _order(error: OrchError) -> tuple[bool, int, int]:
    where = error.where or Position("")
    return where.line is None, where.line or 0, where.column or 0


def first(errors: Iterable[OrchError]) -> OrchError | None:
    """Return the error that comes first in the file; those of overrides come last."""
    return min(errors, key=_order, default=None)


def _as_text(node: Node, path: Path) -> Node:
    if not path:
        return node.as_text()
    entries = {key: (_as_text(child, path[1:]) if key == path[0] else child) for key, child in node.items()}
    if isinstance(node.value, tuple):
        return sequence(tuple(entries.values()), node.where, node.key_where, over=node.over)
    return mapping(entries, node.where, node.key_where, over=node.over)


def _path(tree: Node, loc: tuple[int | str, ...]) -> Path:
    """Return the part of pydantic's location that names keys: tags of unions and `[key]` marks are no keys."""
    path: list[str] = []
    node: Node | None = tree
    for item in loc:
        below = node.get(str(item)) if node is not None else None
        if below is not None:
            path.append(str(item))
            node = below
    return tuple(path)


def _fault(tree: Node, error: Any, prefix: Path, model: type[BaseModel] | None) -> OrchError:
    loc = error["loc"]
    path = _path(tree, loc)
    node = tree.find(path) or tree
    name = _named(dotted((*prefix, *path)), node)
    match error["type"]:
        case "missing":
            full = dotted((*prefix, *path, str(loc[-1])))
            meaning = _line(model, path, str(loc[-1]))
            hint = f"add it, or set {full}=VALUE"
            return OrchError(f"{full} is missing ({meaning})", code="E211", where=node.place, hint=hint)
        case "extra_forbidden":
            allowed = list(fields_at(model, path[:-1]))
            within = f" in {dotted((*prefix, *path[:-1]))}" if len(path) > 1 or prefix else ""
            hint = did_you_mean(path[-1], allowed) or (
                f"allowed: {', '.join(allowed)}" if allowed else "it has no keys"
            )
            return OrchError(f"unknown key {quoted(path[-1])}{within}", code="E210", where=node.place, hint=hint)
        case "literal_error" if loc[-1] == "[key]":
            allowed = _literals(error["ctx"]["expected"])
            hint = did_you_mean(path[-1], allowed) or f"allowed: {', '.join(allowed)}"
            within = dotted((*prefix, *path[:-1]))
            return OrchError(f"unknown key {quoted(path[-1])} in {within}", code="E210", where=node.place, hint=hint)
        case "literal_error" | "enum":
            return _not_one_of(name, node, error["ctx"]["expected"])
        case "string_pattern_mismatch":
            what, found = (name, kind(node)) if loc[-1] != "[key]" else ("the name ", quoted(path[-1]))
            message = f"{what}must be made of letters, digits and . _ / - between two of them; it is {found}"
            return OrchError(message, code="E215", where=node.where if loc[-1] != "[key]" else node.place)
        case "value_error" if loc and loc[-1] == "[key]":
            message = f"the name {quoted(path[-1])} {clipped(str(error['ctx']['error']), 300)}"
            return OrchError(message, code="E215", where=node.place)
        case "value_error":
            return _value_error(name, node, error["ctx"]["error"])
        case "too_short" | "too_long":
            few = "at least" if error["type"] == "too_short" else "at most"
            number = error["ctx"]["min_length" if few == "at least" else "max_length"]
            return OrchError(
                f"{name}must have {few} {number} {'entry' if number == 1 else 'entries'}", code="E213", where=node.where
            )
        case bound if bound in _BOUNDS:
            words, key = _BOUNDS[bound]
            return OrchError(
                f"{name}must be {words} {error['ctx'][key]:.12g}; it is {kind(node)}", code="E213", where=node.where
            )
        case other:
            wanted = _section_form((*prefix, *path)) if other in _SECTION else _WANTED.get(other)
            message = (
                f"{name}must be {wanted}; it is {kind(node)}"
                if wanted
                else f"{name}{clipped(error['msg'], 150)}; it is {kind(node)}"
            )
            return OrchError(message, code="E212", where=node.where, hint=_type_hint(node, other))


def _section_form(path: Path) -> str:
    """Return how a section is written, in the words of a message."""
    match path:
        case ("model" | "data" | "cluster",):
            return "a name, or a mapping: {use: NAME, key: value}"
        case ("stacks",):
            return "a mapping of names to techniques: {NAME: [technique, technique]}"
        case ("stacks", _):
            return "a list of techniques: [NAME, NAME]"
        case ("stacks" | "techniques", *_, technique):
            return f"a mapping of knobs: {{{technique}: {{knob: value}}}}"
        case ("sweep", "over"):
            return "a mapping: {PATH: [choices] | {low: .., high: ..} | auto}"
        case ("sweep", "over", _):
            return "choices [a, b], a range {low: .., high: ..}, or auto"
        case ("sweep", "constraints", metric):
            return f"a bound: {{{metric}: {{at_most: VALUE}}}}, or at_least"
        case ("sweep", "sampler" | "pruner"):
            return "one of Optuna's names, or {NAME: {argument: value}}"
        case ("sweep", "simulate_first"):
            return "a number of trials, or {trials: 400, confirm: 12}"
    return "a mapping: {key: value}"


def _line(model: type[BaseModel] | None, path: Path, key: str) -> str:
    info = fields_at(model, path).get(key)
    return str(info.description or "") if info is not None else ""


def _literals(expected: str) -> list[str]:
    return [word.strip("'") for word in expected.replace(" or ", ", ").split(", ")]


def _not_one_of(name: str, node: Node, expected: str) -> OrchError:
    allowed = _literals(expected)
    near = did_you_mean(str(node.value), allowed) if isinstance(node.value, str) else ""
    rule = f"must be {allowed[0]}" if len(allowed) == 1 else f"must be one of {', '.join(allowed)}"
    return OrchError(f"{name}{rule}; it is {kind(node)}", code="E214", where=node.where, hint=near)


def _value_error(name: str, node: Node, error: BaseException) -> OrchError:
    if isinstance(error, OrchError):
        return OrchError(error.message, code=error.code, where=error.where or node.where, hint=error.hint)
    text = clipped(str(error), 300)
    found = f"; it is {kind(node)}" if text.startswith("must be") else ""
    return OrchError(f"{name}{text}{found}", code="E215", where=_last_written(node), hint=getattr(error, "hint", ""))


def _last_written(node: Node) -> Position:
    """Return where a mapping that is wrong as a whole was last changed: by an override, or where it stands."""
    places = [child.place for _, child in node.items() if child.place.line is None and is_override(child.place)]
    return places[-1] if places else node.where


def _named(name: str, node: Node) -> str:
    """Return how a message begins: with the path, unless the override that is at fault has just shown it."""
    shown = is_override(node.where) and node.where.source.split(": ", 1)[1].startswith(f"{name}=")
    return "" if shown or not name else f"{name} "


def _type_hint(node: Node, wanted: str) -> str:
    text = node.value if isinstance(node.value, str) else ""
    if wanted.startswith("bool") and text.lower() in ("true", "yes", "on", "false", "no", "off"):
        return "write true" if text.lower() in ("true", "yes", "on") else "write false"
    if wanted.startswith(("int", "float")):
        if text.lower().lstrip("+-.") in ("nan", "inf", "infinity"):
            return "only finite numbers are allowed here"
        if text.lstrip("+-").isdigit() and text.lstrip("+-").startswith("0"):
            return f"write it without the leading zero, {text.lstrip('+-').lstrip('0') or '0'}"
        if isinstance(node.value, float) and node.value.is_integer() and abs(node.value) < 1e15:
            return f"write {int(node.value)}"
        if text.replace("_", "").replace(",", "").replace(".", "").isdigit():
            return "write it without quotes and commas"
    if wanted == "string_type" and isinstance(node.value, Mapping):
        return "text that holds `: ` or begins with { needs quotes"
    return "text that begins with - or [ needs quotes" if wanted == "string_type" and node.value is not None else ""


def fields_at(model: type[BaseModel] | None, path: Path) -> dict[str, Any]:
    """Return the fields of the model that stands at `path` below `model`, by key; empty where any key may stand."""
    here: Any = model
    for key in path:
        here = _below(here, key)
    if not (isinstance(here, type) and issubclass(here, BaseModel)):
        return {}
    return {info.alias or name: info for name, info in here.model_fields.items()}  # `in` is no name in Python


def _below(annotation: Any, key: str) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        info = fields_at(annotation, ()).get(key)
        return _section(info.annotation) if info is not None else None
    arguments = get_args(annotation)
    if get_origin(annotation) is dict:
        return _section(arguments[1])
    return _section(arguments[0]) if get_origin(annotation) in (list, tuple) else None


def _section(annotation: Any) -> Any:
    """Return an annotation without `None` and `Annotated`."""
    while True:
        if get_origin(annotation) in (Union, UnionType):
            annotation = next((part for part in get_args(annotation) if part is not type(None)), None)
        elif hasattr(annotation, "__metadata__"):
            annotation = annotation.__origin__
        else:
            return annotation if get_origin(annotation) is not Literal else None
