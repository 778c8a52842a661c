"""The short forms of a section `sweep`, written out before the schema sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from orch.recipe.tree import Node, mapping, sequence

AUTO = "auto"


def written_out(node: Node) -> Node:
    """Return a `sweep` section with its short forms written out."""
    if not isinstance(node.value, Mapping):
        return node
    entries = dict(node.value)
    for key in ("minimize", "maximize"):
        if key in entries and isinstance(entries[key].value, str):
            entries[key] = _listed(entries[key])
    for key in ("sampler", "pruner"):
        if key in entries and isinstance(entries[key].value, str):
            entries[key] = _entry(str(entries[key].value), replace(entries[key], value={}, text=None), entries[key])
    first = entries.get("simulate_first")
    if first is not None and isinstance(first.value, int) and not isinstance(first.value, bool):
        entries["simulate_first"] = _entry("trials", first, first)
    over = entries.get("over")
    if over is not None and isinstance(over.value, Mapping):
        found = {path: _over(child) for path, child in over.value.items()}
        entries["over"] = mapping(found, over.where, over.key_where, over=over.over)
    return mapping(entries, node.where, node.key_where, over=node.over)


def _over(node: Node) -> Node:
    if isinstance(node.value, tuple):
        return _entry("choices", node, node)
    if node.value == AUTO:
        return mapping({}, node.where, node.key_where, over=node.over)
    when = node.get("when")
    if when is not None and isinstance(when.value, Mapping):
        conditions = {path: child if isinstance(child.value, tuple) else _listed(child) for path, child in when.items()}
        entries = {**dict(node.items()), "when": mapping(conditions, when.where, when.key_where)}
        return mapping(entries, node.where, node.key_where, over=node.over)
    return node


def _listed(node: Node) -> Node:
    return sequence((replace(node, key_where=None),), node.where, node.key_where, over=node.over)


def _entry(key: str, node: Node, outer: Node) -> Node:
    return mapping({key: replace(node, key_where=node.where)}, outer.where, outer.key_where, over=outer.over)
