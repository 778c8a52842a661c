"""Where every value of a recipe comes from: a line of a file, an override, or a default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from orch.cluster.spec import ClusterSpec
from orch.errors import OrchError, Position, did_you_mean, quoted
from orch.recipe.faults import fields_at
from orch.recipe.schema import RecipeFile
from orch.recipe.stacks import Stack, knob_node
from orch.recipe.tree import Node, Path, dotted, mapping, sequence

_DEFAULT = Position("default")


class Origin(NamedTuple):
    """A value, where it was written (or `default`), and the values it replaced, latest first."""

    path: str
    value: Any
    where: Position
    replaced: tuple[tuple[Any, Position], ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.path} = {_short(self.value)}  ({self.where})"]
        lines += [f"  instead of {_short(value)}  ({where})" for value, where in self.replaced]
        return "\n".join(lines)


def _short(value: Any) -> str:
    import json

    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else text[:197] + "..."


def complete(
    tree: Node,
    spec: RecipeFile,
    cluster: ClusterSpec,
    stacks: Mapping[str, Stack],
    subject: Mapping[str, tuple[str, BaseModel]],
) -> Node:
    """Return `tree` with every default in it: the schema's, and the knobs of every stack's techniques, of the model and
    of the data (`subject`: section -> (name, knobs)).
    """
    full = _with_defaults(_as_read(tree, spec), RecipeFile, ())
    described = _as_read(full.get("cluster") or full, cluster)
    entries = {**dict(full.items()), "cluster": described, "stacks": _knobs(tree, stacks)}
    for section, (name, knobs) in subject.items():
        entries[section] = _filled(entries[section], knobs, f"default of {name}")
    return mapping(entries, full.where)


def _filled(node: Node, knobs: BaseModel, why: str) -> Node:
    """Return the knobs `node` gives, with the defaults of those it leaves out."""
    given = dict(_as_read(node, knobs).items())
    for knob, info in type(knobs).model_fields.items():
        if knob not in given and not info.is_required():
            given[knob] = default_node(info.default, Position(why))
    return mapping(given, node.where, node.key_where, over=node.over)


def _as_read(node: Node, value: Any) -> Node:
    """Return `node` with the words that the schema took as text (`name: 1.10`) as text, for whoever reads it again."""
    if isinstance(value, str):
        return node if isinstance(node.value, str) else node.as_text()
    if isinstance(value, BaseModel):
        value = {**value.__dict__, **(value.__pydantic_extra__ or {})}
    if isinstance(value, Mapping) and isinstance(node.value, Mapping):
        entries = {key: _as_read(child, value.get(key)) for key, child in node.items()}
        return mapping(entries, node.where, node.key_where, over=node.over)
    if isinstance(value, (list, tuple)) and isinstance(node.value, tuple) and len(value) == len(node.value):
        items = tuple(_as_read(child, item) for child, item in zip(node.value, value, strict=True))
        return sequence(items, node.where, node.key_where, over=node.over)
    return node


def _with_defaults(node: Node, model: type[BaseModel], path: Path) -> Node:
    if not isinstance(node.value, Mapping):
        return node
    entries = dict(node.value)
    for key, info in fields_at(model, path).items():
        if key in entries:
            entries[key] = _with_defaults(entries[key], model, (*path, key)) if key != "stacks" else entries[key]
        elif not info.is_required() and info.default is not None:
            entries[key] = default_node(info.default)
    return mapping(entries, node.where, node.key_where, over=node.over)


def default_node(value: Any, where: Position = _DEFAULT) -> Node:
    """Return a default as a node, placed at `default`."""
    if isinstance(value, BaseModel):
        value = {name: item for name, item in value if item is not None}
    if isinstance(value, Mapping):
        return mapping({key: default_node(item, where) for key, item in value.items()}, where)
    if isinstance(value, (list, tuple)):
        return sequence(tuple(default_node(item, where) for item in value), where)
    return Node(value, where)


def _knobs(tree: Node, stacks: Mapping[str, Stack]) -> Node:
    shared = tree.get("techniques")
    written = tree.get("stacks") or tree
    named: dict[str, Node] = {}
    for name, stack in stacks.items():
        members = written.get(name) or written
        parts = {}
        for member in stack.members:
            own = members.get(member.name)
            node = knob_node(own, shared.get(member.name) if shared is not None else None)
            why = f"default of {member.name}"
            if node is None:
                node = mapping({}, Position(f"{why}: fills an empty slot"))
            filled = _filled(node, member.config, why)
            parts[member.name] = mapping(dict(filled.items()), node.where, own.key_where if own is not None else None)
        named[name] = mapping(parts, members.where, members.key_where, over=members.over)
    return mapping(named, written.where, written.key_where, over=written.over)


def origin_of(tree: Node, path: str) -> Origin:
    """Return the value at a dotted path of a completed tree and where it comes from."""
    keys = _keys(tree, path)
    node = tree.find(keys)
    if node is None:
        if _is_unset(keys):
            return Origin(dotted(keys), None, _DEFAULT)
        above, depth = tree.nearest(keys)
        known = dict.fromkeys([key for key, _ in above.items()] + list(fields_at(RecipeFile, keys[:depth])))
        level = f" in {dotted(keys[:depth])}" if depth else ""
        hint = did_you_mean(keys[depth], known) or (
            f"there are: {', '.join(known)}" if known else "it is a value without keys"
        )
        raise OrchError(f"there is no key {quoted(keys[depth])}{level}", code="E210", where=Position(path), hint=hint)
    replaced = []
    over = node.over
    while over is not None:
        replaced.append((over.plain(), over.where))
        over = over.over
    return Origin(dotted(keys), node.plain(), node.where, tuple(replaced))


def leaves(tree: Node, path: Path = ()) -> Iterator[tuple[str, Position]]:
    """Yield every scalar of a completed tree: its dotted path, and where it was written."""
    if isinstance(tree.value, (Mapping, tuple)) and tree.value:
        for key, node in tree.items():
            yield from leaves(node, (*path, key))
    elif path:
        yield dotted(path), tree.where


def _keys(tree: Node, path: str) -> Path:
    """Return the keys of a dotted path; where a key itself holds dots, the longest key that is there."""
    parts = path.replace('"', "").split(".")
    keys: list[str] = []
    node: Node | None = tree
    while parts:
        count = next((n for n in range(len(parts), 1, -1) if node is not None and node.get(".".join(parts[:n]))), 1)
        keys.append(".".join(parts[:count]))
        node = node.get(keys[-1]) if node is not None else None
        parts = parts[count:]
    return tuple(keys)


def _is_unset(keys: Path) -> bool:
    info = fields_at(RecipeFile, keys[:-1]).get(keys[-1])
    return info is not None and not info.is_required() and info.default is None
