"""Overrides from the command line: `train.steps=20`. The value is YAML, read by the same rule as a file.

A path names keys with dots and list entries by index (`seeds.0=3`); a key that holds a dot stands in double quotes.
`path=null` removes a key. Whatever cannot be done says why in one line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import yaml

from orch.errors import OrchError, Position, clipped, did_you_mean, quoted
from orch.recipe.source import LOADER, Origin, read_value
from orch.recipe.tree import MAX_DEPTH, Node, Path, dotted, kind, mapping, sequence

NAMED = ("model", "data", "cluster")
"""Sections that may be a bare name: `cluster: NAME` is short for `cluster: {use: NAME}`."""

BATCHES = (("train", "batch_per_worker"), ("train", "global_batch"))
"""Two ways to say one thing; a recipe has one of them."""

_PART = re.compile(r'"((?:[^"\\]|\\.)*)"|([^."]+)')


@dataclass(frozen=True, slots=True)
class Override:
    """One `path=value` as given, and its place for messages."""

    text: str
    where: Position
    path: Path
    node: Node


def parse_override(text: str, number: int) -> Override:
    """Return the override `text`, the `number`-th of its command line. Raises OrchError with a one-line reason."""
    where = Position(f"override {number}: {clipped(text) or quoted(text)}")
    if text.startswith("+"):
        raise OrchError(
            "orch has no `+`: setting a key and adding one are the same", code="E131", where=where, hint="drop the +"
        )
    if text.startswith("~"):
        raise OrchError("orch has no `~`", code="E131", where=where, hint="KEY=null removes a key")
    if text.startswith("-"):
        raise OrchError(
            "is neither an option nor an override",
            code="E131",
            where=where,
            hint="an override is path=value; options: --help",
        )
    written, equals, value = text.partition("=")
    if not equals:
        raise OrchError(
            "has no `=`", code="E130", where=where, hint="an override is path=value, such as train.steps=20"
        )
    if written.endswith("+"):
        raise OrchError("orch has no `+=`", code="E131", where=where, hint="write the whole list: key=[a, b]")
    path = path_of(written.strip(), where)
    if path[0] == "extends":
        raise OrchError(
            "extends cannot be set from the command line",
            code="E131",
            where=where,
            hint="write a recipe that extends it",
        )
    return Override(text, where, path, _value(value, where))


def is_override(where: Position) -> bool:
    """Whether a position is an override of the command line."""
    return where.line is None and where.source.startswith("override ")


def path_of(written: str, where: Position) -> Path:
    """Return the keys of a dotted path. Raises OrchError (E131, E132) at `where`."""
    if not written:
        raise OrchError("has no path before its `=`", code="E132", where=where, hint="an override is path=value")
    parts: list[str] = []
    index = 0
    while True:
        match = _PART.match(written, index)
        if match is None:
            raise OrchError(
                "a part of the path is empty or its quotes do not match",
                code="E132",
                where=where,
                hint="write a.b.c=value",
            )
        if match[2] is not None and set(match[2]) & set("[]"):
            raise OrchError(
                "orch has no [ ] in a path", code="E131", where=where, hint="an entry of a list: seeds.0=VALUE"
            )
        parts.append(match[2].strip() if match[2] is not None else re.sub(r"\\(.)", r"\1", match[1]))
        index = match.end()
        if index == len(written):
            break
        if written[index] != ".":
            raise OrchError(
                "a dot is missing after the closing quote", code="E132", where=where, hint='write a."b.c".d=value'
            )
        index += 1
    if len(parts) > MAX_DEPTH:
        raise OrchError(f"the path has more than {MAX_DEPTH} parts", code="E132", where=where)
    if not all(parts) or not all(part.isprintable() for part in parts):
        raise OrchError(
            "a part of the path is empty or unprintable", code="E132", where=where, hint="write a.b.c=value"
        )
    return tuple(parts)


def _value(text: str, where: Position) -> Node:
    if not text.strip():
        raise OrchError(
            "has no value after its `=`",
            code="E133",
            where=where,
            hint="KEY=null removes a key; KEY='\"\"' is empty text",
        )
    try:
        node = read_value(text, Origin(where.source, lines=False))
    except OrchError as error:
        hint = error.hint or "quote the value: KEY='\"...\"'"
        raise OrchError(error.message, code=error.code, where=where, hint=hint) from None
    _all_read(text, where)
    if node is not None and node.value is None and text.strip() not in ("null", "~"):
        hint = "KEY=null removes a key; text that begins with & needs quotes"
        raise OrchError(f"{quoted(text)} is a name for a value that is not there", code="E133", where=where, hint=hint)
    if node is None:
        hint = "quote it: KEY='\"# text\"'"
        raise OrchError("has only a comment as its value", code="E133", where=where, hint=hint)
    return node


def _all_read(text: str, where: Position) -> None:
    # YAML drops comments and joins the lines of unquoted text: wanted in a file, but here it would lose what was typed.
    end = 0
    for event in yaml.parse(text, Loader=LOADER):
        if isinstance(event, yaml.DocumentStartEvent) and event.explicit:
            raise OrchError(
                "`---` begins a document, not a value", code="E133", where=where, hint="quote it: KEY='\"---\"'"
            )
        if not isinstance(event, (yaml.ScalarEvent, yaml.CollectionEndEvent, yaml.AliasEvent)):
            continue
        if event.start_mark is None or event.end_mark is None:
            continue
        end = max(end, event.end_mark.index)
        plain = isinstance(event, yaml.ScalarEvent) and event.implicit[0]
        if plain and "\n" in text[event.start_mark.index : event.end_mark.index].strip():
            hint = "put it in double quotes, with \\n for a line end"
            raise OrchError("its value runs over several lines", code="E133", where=where, hint=hint)
    if "#" in text[end:]:
        raise OrchError(
            "a # after a space begins a comment, so the rest would be lost",
            code="E133",
            where=where,
            hint="quote the value: KEY='\"a #b\"'",
        )


def refuse_meetings(overrides: Sequence[Override]) -> None:
    """Raise OrchError where two overrides set the same value, or the whole after its part."""
    for index, override in enumerate(overrides):
        for number, earlier in enumerate(overrides[:index], start=1):
            shared = min(len(earlier.path), len(override.path))
            if earlier.path[:shared] == override.path[:shared] and len(override.path) <= len(earlier.path):
                found = "too" if earlier.path == override.path else f"a part of it, {dotted(earlier.path)}"
                message = (
                    f"override {number} already sets {found}"
                    if earlier.path != override.path
                    else f"override {number} already sets {dotted(override.path)}"
                )
                hint = "keep one" if earlier.path == override.path else "give the whole first, then its parts"
                raise OrchError(message, code="E134", where=override.where, hint=hint)


def apply_overrides(tree: Node, overrides: Sequence[Override]) -> Node:
    """Return `tree` with every override set. Raises OrchError where a path leads nowhere."""
    for override in overrides:
        tree = _set(tree, override, 0)
        if override.path in BATCHES and override.node.value is not None:
            tree = _without(tree, other_batch(override.path))
    return tree


def other_batch(path: Path) -> Path:
    """Return the other way to give the batch: the two are one setting, so giving one replaces the other."""
    return BATCHES[1 - BATCHES.index(path)]


def _without(tree: Node, path: Path) -> Node:
    """Return `tree` without a value of a file; what another override has set stays, so that a contradiction shows."""
    section, node = tree.get(path[0]), tree.find(path)
    if section is None or node is None or node.place.line is None:
        return tree
    kept = mapping({key: child for key, child in section.items() if key != path[1]}, section.where, section.key_where)
    return mapping({**dict(tree.items()), path[0]: kept}, tree.where)


def _set(node: Node, override: Override, depth: int) -> Node:
    node = _opened(node, override, depth)
    if isinstance(node.value, tuple):
        return _set_entry(node, override, depth)
    entries = dict(node.value) if isinstance(node.value, Mapping) else {}
    key, length = _key(entries, override.path, depth)
    old = entries.get(key)
    if depth + length < len(override.path):
        below = old if old is not None else mapping({}, override.where, override.where)
        entries[key] = _set(below, override, depth + length)
    elif override.node.value is not None or (old is None and "use" in entries):
        entries[key] = replace(override.node, key_where=override.where, over=old)
    elif old is None and override.path not in BATCHES:
        raise _nothing_to_remove(entries, key, override)
    else:
        entries.pop(key, None)
    return mapping(entries, node.where, node.key_where, over=node.over)


def _opened(node: Node, override: Override, depth: int) -> Node:
    """Return `node` as something with keys: a name stands for the section it names, nothing for an empty one."""
    if isinstance(node.value, (Mapping, tuple)):
        return node
    here = override.path[:depth]
    if node.value is None:
        return mapping({}, node.where, node.key_where)
    if len(here) == 1 and here[0] in NAMED and isinstance(node.value, str):
        return mapping({"use": node}, node.where, node.key_where)
    found = f"{dotted(here)} is {kind(node)}, which has no {quoted(override.path[depth])} below it"
    raise OrchError(found, code="E132", where=override.where, hint=f"set {dotted(here)} itself")


def _key(entries: Mapping[str, Node], path: Path, depth: int) -> tuple[str, int]:
    """Return the next key and how many parts of the path it takes: a key with dots needs no quotes if it exists."""
    for length in range(len(path) - depth, 1, -1):
        joined = ".".join(path[depth : depth + length])
        if joined in entries:
            return joined, length
    return path[depth], 1


def _set_entry(node: Node, override: Override, depth: int) -> Node:
    key, here = override.path[depth], dotted(override.path[:depth])
    old = node.get(key)
    entries = list(node.value) if isinstance(node.value, tuple) else []
    if old is None:
        last = f"its entries are 0 to {len(entries) - 1}" if entries else "it is empty"
        raise OrchError(
            f"{here} is a list and has no entry {quoted(key)}",
            code="E132",
            where=override.where,
            hint=f"{last}; {here}=[...] sets the whole list",
        )
    if depth + 1 < len(override.path):
        entries[int(key)] = _set(old, override, depth + 1)
    elif override.node.value is None:
        del entries[int(key)]
    else:
        entries[int(key)] = replace(override.node, key_where=override.where, over=old)
    return sequence(tuple(entries), node.where, node.key_where, over=node.over)


def _nothing_to_remove(entries: Mapping[str, Node], key: str, override: Override) -> OrchError:
    return OrchError(
        f"there is no {dotted(override.path)} to remove",
        code="E132",
        where=override.where,
        hint=did_you_mean(key, entries),
    )
