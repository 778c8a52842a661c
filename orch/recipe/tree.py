"""What a YAML file says, as a tree of values that know where each was written.

A tree is never changed: composing returns a new one that shares the untouched branches. Every node keeps the node
it replaced, so that `orch check --why KEY` can tell the whole history of a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from orch.errors import Position, clipped, quoted

Scalar: TypeAlias = str | int | float | bool | None
Path: TypeAlias = tuple[str, ...]

MAX_NODES = 50_000
"""Values that one recipe may hold after anchors and references are expanded."""

MAX_DEPTH = 40
"""Levels of nesting that one recipe may have."""


@dataclass(frozen=True, slots=True)
class Node:
    """One value: a scalar, a mapping or a list of nodes, with the place of its first character."""

    value: Scalar | Mapping[str, Node] | tuple[Node, ...]
    where: Position
    key_where: Position | None = None  # where the key was written, for values of a mapping
    text: str | None = None  # an unquoted scalar as it was written: `1.10` for 1.1
    size: int = 1  # values below and including this one
    over: Node | None = field(default=None, repr=False)  # what this value replaced

    @property
    def place(self) -> Position:
        """Where to point for a fault of the whole entry: its key, or the value itself."""
        return self.key_where or self.where

    def items(self) -> Iterator[tuple[str, Node]]:
        """Yield the entries of a mapping or a list, keyed by name or index; nothing for a scalar."""
        if isinstance(self.value, Mapping):
            yield from self.value.items()
        elif isinstance(self.value, tuple):
            yield from ((str(index), node) for index, node in enumerate(self.value))

    def get(self, key: str) -> Node | None:
        """Return the entry `key` of a mapping, or of a list by index; None when there is none."""
        if isinstance(self.value, Mapping):
            return self.value.get(key)
        if (
            isinstance(self.value, tuple)
            and key.isascii()
            and key.isdigit()
            and len(key) < 7
            and str(int(key)) == key  # 00 is no other name of 0
            and int(key) < len(self.value)
        ):
            return self.value[int(key)]
        return None

    def find(self, path: Path) -> Node | None:
        """Return the node at `path`, or None."""
        node: Node | None = self
        for key in path:
            node = node.get(key) if node is not None else None
        return node

    def nearest(self, path: Path) -> tuple[Node, int]:
        """Return the deepest node on the way to `path`, and how many keys of `path` lead to it."""
        node = self
        for depth, key in enumerate(path):
            below = node.get(key)
            if below is None:
                return node, depth
            node = below
        return node, len(path)

    def plain(self) -> Any:
        """Return the value as plain dicts, lists and scalars."""
        if isinstance(self.value, Mapping):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, tuple):
            return [node.plain() for node in self.value]
        return self.value

    def as_text(self) -> Node:
        """Return an unquoted number or boolean as the text that was written, for a place that wants text."""
        return replace(self, value=self.text, text=None) if self.text is not None else self


def mapping(
    entries: Mapping[str, Node], where: Position, key_where: Position | None = None, over: Node | None = None
) -> Node:
    """Return a mapping node of `entries`."""
    return Node(dict(entries), where, key_where, size=1 + sum(node.size for node in entries.values()), over=over)


def sequence(
    entries: tuple[Node, ...], where: Position, key_where: Position | None = None, over: Node | None = None
) -> Node:
    """Return a list node of `entries`."""
    return Node(entries, where, key_where, size=1 + sum(node.size for node in entries), over=over)


def kind(node: Node) -> str:
    """Return what a node is, in the words of a message."""
    if isinstance(node.value, Mapping):
        return "a mapping" if node.value else "an empty mapping"
    if isinstance(node.value, tuple):
        return "a list" if node.value else "an empty list"
    return shown(node)


def shown(node: Node) -> str:
    """Return a scalar as a message shows it: numbers as written, text in quotes, all of it on one line and short."""
    if node.value is None:
        return "nothing"
    if isinstance(node.value, str):
        return quoted(node.value)
    return clipped(node.text if node.text is not None else _literal(node.value))


def _literal(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def dotted(path: Path) -> str:
    """Return a path as a user types it; a key with a dot or an equals sign stands in double quotes."""
    return clipped(".".join(f'"{key}"' if not key or set(key) & set('.="') else key for key in path), 120)
