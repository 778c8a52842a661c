"""`${a.b}`: a value that is written once and used twice. Resolved when the recipe is loaded.

A text that is one reference takes the value with its type; references inside a longer text are put in as text.
`$$` is a dollar sign. `???` marks a value that the command line must set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from orch.errors import OrchError, clipped, did_you_mean, quoted
from orch.recipe.tree import MAX_NODES, Node, Path, dotted, kind, mapping, sequence

_REFERENCE = re.compile(r"\$\$|\$\{([^{}]*)\}|\$\{")
_MAX_CHAIN = 50
_MAX_TEXT = 1 << 20


def resolve(tree: Node) -> Node:
    """Return `tree` with every reference replaced. Raises OrchError at the line of a reference that cannot be."""
    return _Resolver(tree).resolve(tree)


def first_missing(tree: Node, path: Path = ()) -> OrchError | None:
    """Return the error for the first `???` of `tree`, or None."""
    if tree.value == "???":
        name = dotted(path)
        return OrchError(f"{name} is ??? (missing)", code="E123", where=tree.place, hint=f"set it with {name}=VALUE")
    for key, node in tree.items():
        if error := first_missing(node, (*path, key)):
            return error
    return None


class _Resolver:
    def __init__(self, root: Node) -> None:
        self.root = root
        self.done: dict[int, Node] = {}  # by identity: the nodes live as long as the root
        self.busy: list[Node] = []
        self.chain = 0
        self.produced = 0

    def resolve(self, node: Node) -> Node:
        if not isinstance(node.value, (Mapping, tuple)) and not (isinstance(node.value, str) and "$" in node.value):
            return node
        if (done := self.done.get(id(node))) is not None:
            return done
        if any(node is other for other in self.busy):
            reference = next(other for other in reversed(self.busy) if isinstance(other.value, str))
            raise OrchError(f"{kind(reference)} leads back to itself", code="E121", where=reference.where)
        self.busy.append(node)
        result = self._resolved(node)
        self.busy.pop()
        if result.size > MAX_NODES:
            raise OrchError(
                f"holds more than {MAX_NODES:,} values once its references are followed", code="E111", where=node.where
            )
        self.done[id(node)] = result
        return result

    def _resolved(self, node: Node) -> Node:
        if isinstance(node.value, Mapping):
            entries = {key: self.resolve(child) for key, child in node.value.items()}
            return mapping(entries, node.where, node.key_where, over=node.over)
        if isinstance(node.value, tuple):
            return sequence(
                tuple(self.resolve(child) for child in node.value), node.where, node.key_where, over=node.over
            )
        return self._text(node, str(node.value))

    def _text(self, node: Node, text: str) -> Node:
        whole = _REFERENCE.fullmatch(text)
        if whole is not None and whole[1] is not None:
            target = self._target(whole[1], node)
            return replace(target, where=node.where, key_where=node.key_where, over=node.over)
        parts: list[str] = []
        index = 0
        for match in _REFERENCE.finditer(text):
            parts.append(text[index : match.start()])
            parts.append(self._part(match, node))
            index = match.end()
        parts.append(text[index:])
        result = "".join(parts)
        self.produced += len(result)
        if self.produced > _MAX_TEXT:
            raise OrchError("its references make more than 1 MiB of text", code="E111", where=node.where)
        return replace(node, value=result)

    def _part(self, match: re.Match[str], node: Node) -> str:
        if match[0] == "$$":
            return "$"
        if match[1] is None:
            raise OrchError(
                f"a reference in {quoted(str(node.value))} has no closing brace",
                code="E122",
                where=node.where,
                hint="$${ is a literal ${",
            )
        target = self._target(match[1], node)
        if isinstance(target.value, (Mapping, tuple)):
            raise OrchError(
                f"${{{clipped(match[1])}}} is {kind(target)}, which does not fit into a text",
                code="E122",
                where=node.where,
            )
        return target.text if target.text is not None else str(target.value if target.value is not None else "")

    def _target(self, name: str, node: Node) -> Node:
        self.chain += 1
        if self.chain > _MAX_CHAIN:
            raise OrchError(f"follows more than {_MAX_CHAIN} references in a row", code="E121", where=node.where)
        found = self.root
        path = tuple(name.strip().split("."))
        for depth, key in enumerate(path):
            if isinstance(found.value, str):
                found = self.resolve(found)
            below = found.get(key)
            if below is None:
                near = did_you_mean(key, (k for k, _ in found.items()))
                level = f" in {dotted(path[:depth])}" if depth else ""
                missing = f"${{{clipped(name)}}} names nothing: there is no {quoted(key)}{level}"
                raise OrchError(missing, code="E120", where=node.where, hint=near or "$${...} is literal text")
            found = below
        found = self.resolve(found)
        self.chain -= 1
        return found
