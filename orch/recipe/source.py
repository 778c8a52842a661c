"""Read a YAML file into a tree whose every key and value knows its line and column.

libyaml's events are read directly: PyYAML's own constructors lose positions, let the last of two equal keys win and
read YAML 1.1. Size, nesting and the expansion of anchors are bounded, so no file can exhaust the machine.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from pathlib import Path
from typing import Any

import yaml

from orch.errors import OrchError, Position, clipped, nearest, quoted
from orch.recipe.scalars import read_scalar
from orch.recipe.tree import MAX_DEPTH, MAX_NODES, Node, mapping, sequence

MAX_BYTES = 1 << 20
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXT_TAGS = {"!", "tag:yaml.org,2002:str"}
_NESTED_TAGS = {"!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}


def read_file(path: Path) -> Node:
    """Return the tree of the YAML file `path`; its top level is a mapping. Raises OrchError for anything else."""
    name = clipped(display(path), 200)
    return read_text(_decode(_bytes(path, name), name), Origin(name))


def display(path: Path) -> str:
    """Return how messages name `path`: relative when it lies below the working directory."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def _bytes(path: Path, name: str) -> bytes:
    where = Position(name)
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise OrchError("is a directory, not a file", code="E101", where=where, hint="name the YAML file inside it")
        if not stat.S_ISREG(status.st_mode):
            raise OrchError("is not a regular file", code="E101", where=where, hint="name a YAML file")
        if status.st_size > MAX_BYTES:
            size = f"{status.st_size / 1e6:.1f} MB"
            raise OrchError(
                f"is {size}; a recipe has at most 1 MiB", code="E102", where=where, hint="is this the right file?"
            )
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise OrchError("there is no such file", code="E100", where=where, hint=_beside(path)) from None
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise OrchError(f"cannot be read: {clipped(reason)}", code="E101", where=where) from None


def _beside(path: Path) -> str:
    try:
        stems = {
            entry.stem: entry.name
            for entry in path.parent.iterdir()
            if entry.suffix in (".yaml", ".yml") and entry.exists()
        }
    except OSError:
        stems = {}
    near = nearest(path.stem, stems)
    return f"did you mean {stems[near]}?" if near is not None else "orch list recipes names the ones that can be found"


def _decode(data: bytes, name: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise OrchError("is UTF-16", code="E103", where=Position(name), hint="save it as UTF-8") from None
        head = data[: error.start]
        where = Position(name, head.count(b"\n") + 1, error.start - head.rfind(b"\n"))
        found = f"the byte 0x{data[error.start]:02x} is not UTF-8"
        raise OrchError(found, code="E103", where=where, hint="save the file as UTF-8") from None
    return text


def folded_key(text: str) -> str:
    """Return a key as it is compared with others: keys that differ in case, `_` or `-`, or form of Unicode collide."""
    return unicodedata.normalize("NFKC", text).casefold().replace("_", "-").strip()


class Origin:
    """Where a text stands: a file, whose marks become line and column, or one override, which has no lines."""

    def __init__(self, source: str, *, lines: bool = True) -> None:
        self.source = source
        self.lines = lines

    def at(self, line: int, column: int) -> Position:
        """Return the position of a mark; `line` and `column` count from 0, as libyaml does."""
        return Position(self.source, line + 1, column + 1) if self.lines else Position(self.source)


def read_text(text: str, origin: Origin) -> Node:
    """Return the tree of one YAML document that is a mapping."""
    for line, content in enumerate(text.splitlines()):
        if "\0" in content:
            raise OrchError("is a binary file, not YAML", code="E102", where=origin.at(line, content.index("\0")))
    node = read_value(text, origin)
    if node is None or node.value is None:
        raise OrchError("is empty", code="E104", where=origin.at(0, 0), hint="`orch new recipe NAME` writes a start")
    if not isinstance(node.value, dict):
        raise OrchError("holds no `key: value` lines at its top level", code="E105", where=node.where)
    return node


def read_value(text: str, origin: Origin) -> Node | None:
    """Return the tree of one YAML document of any kind; None when the text holds no document."""
    builder = _Builder(origin)
    try:
        for event in yaml.parse(text, Loader=LOADER):
            builder.take(event)
    except yaml.reader.ReaderError as error:
        raise _unreadable(text, error, origin) from None
    except yaml.MarkedYAMLError as error:
        raise _syntax(text, error, origin) from None
    except (UnicodeEncodeError, RecursionError):
        raise OrchError("holds characters that are not valid text", code="E102", where=origin.at(0, 0)) from None
    return builder.root


def _unreadable(text: str, error: yaml.reader.ReaderError, origin: Origin) -> OrchError:
    head = text.encode("utf-8", "surrogatepass")[: error.position].decode("utf-8", "ignore")
    where = origin.at(head.count("\n"), len(head) - head.rfind("\n") - 1)
    return OrchError(
        "a control character is not allowed in YAML",
        code="E102",
        where=where,
        hint="remove it, or write it as an escape in double quotes",
    )


def _syntax(text: str, error: yaml.MarkedYAMLError, origin: Origin) -> OrchError:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark is not None else (0, 0)
    lines = text.splitlines()
    here = lines[line] if line < len(lines) else ""
    problem = str(error.problem or error.context or "not YAML")
    if here[column : column + 1] == "\t" or "\t" in here[: len(here) - len(here.lstrip())]:
        return OrchError(
            "a tab indents this line",
            code="E106",
            where=origin.at(line, here.find("\t")),
            hint="YAML indents with spaces only",
        )
    if "???" in here:
        where = origin.at(line, here.index("???"))
        return OrchError("??? inside { } or [ ] needs quotes", code="E106", where=where, hint="write '???'")
    if "nesting" in problem:
        return _too_deep(origin.at(line, column))
    if "cannot start any token" in problem and here[column : column + 1]:
        return OrchError(
            f"a value cannot begin with {here[column]!r}",
            code="E106",
            where=origin.at(line, column),
            hint=f"put it in quotes: {clipped(repr(here[column:].strip()))}",
        )
    if "mapping values are not allowed" in problem:
        hint = "a value that holds `: ` needs quotes; otherwise check the indentation"
        return OrchError(
            "a second `:` in one line, or a line indented too far",
            code="E106",
            where=origin.at(line, column),
            hint=hint,
        )
    context = f" {error.context}" if error.context and error.context != problem else ""
    if error.context_mark is not None and error.context_mark.line != line:
        context += f" that begins in line {error.context_mark.line + 1}"
    return OrchError(
        f"not valid YAML: {clipped(problem, 80)}{clipped(context, 100)}", code="E106", where=origin.at(line, column)
    )


def _too_deep(where: Position) -> OrchError:
    return OrchError(f"nested more than {MAX_DEPTH} levels deep", code="E111", where=where)


class _Open:
    """A mapping or list whose end has not been read yet."""

    def __init__(self, where: Position, anchor: str | None, is_mapping: bool) -> None:
        self.where = where
        self.anchor = anchor
        self.is_mapping = is_mapping
        self.entries: dict[str, Node] = {}
        self.folded: dict[str, tuple[str, Position]] = {}
        self.merged: list[Node] = []
        self.listed: list[Node] = []
        self.key: tuple[str, Position] | None = None
        self.merging = False  # the key just read is `<<`


class _Builder:
    """Turns libyaml's events into nodes, without recursion."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.root: Node | None = None
        self.documents = 0
        self.open: list[_Open] = []
        self.anchors: dict[str, Node] = {}

    def take(self, event: yaml.Event) -> None:
        where = (
            self.origin.at(event.start_mark.line, event.start_mark.column)
            if event.start_mark
            else Position(self.origin.source)
        )
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event, where)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event, where)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            self._start(event, where)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._end()
        elif isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                raise OrchError(
                    "a second document begins here (`---`)",
                    code="E107",
                    where=where,
                    hint="a recipe is one document; use one file each",
                )

    def _scalar(self, event: Any, where: Position) -> None:
        _check_tag(event.tag, where, _TEXT_TAGS)
        plain = event.implicit[0] and event.tag is None
        if self._wants_key():
            self._key(event.value, where, plain)
            return
        try:
            value = read_scalar(event.value) if plain else event.value
        except ValueError as error:
            raise OrchError(str(error), code="E113", where=where) from None
        text = event.value if plain and not isinstance(value, str) and value is not None else None
        self._put(Node(value, where, text=text), event.anchor)

    def _alias(self, event: Any, where: Position) -> None:
        node = self.anchors.get(event.anchor)
        if node is None:
            inside = any(frame.anchor == event.anchor for frame in self.open)
            if inside:
                raise OrchError(f"*{clipped(event.anchor)} stands inside the value it names", code="E112", where=where)
            hint = "text that begins with * needs quotes"
            raise OrchError(f"*{clipped(event.anchor)} names no anchor above it", code="E112", where=where, hint=hint)
        if self._wants_key():
            raise OrchError("a key cannot be an alias", code="E109", where=where, hint="write the key out")
        self._put(node, None)

    def _start(self, event: Any, where: Position) -> None:
        _check_tag(event.tag, where, _NESTED_TAGS)
        if self._wants_key():
            raise OrchError(
                "a key must be one word, not a mapping or a list",
                code="E109",
                where=where,
                hint="quote text that holds { or [",
            )
        if len(self.open) >= MAX_DEPTH:
            raise _too_deep(where)
        self.open.append(_Open(where, event.anchor, isinstance(event, yaml.MappingStartEvent)))

    def _end(self) -> None:
        frame = self.open.pop()
        if frame.is_mapping:
            entries = dict(frame.entries)
            for node in frame.merged:
                for key, value in node.items():
                    entries.setdefault(key, value)
            self._put(mapping(entries, frame.where), frame.anchor)
        else:
            self._put(sequence(tuple(frame.listed), frame.where), frame.anchor)

    def _wants_key(self) -> bool:
        return bool(self.open) and self.open[-1].is_mapping and self.open[-1].key is None

    def _key(self, text: str, where: Position, plain: bool) -> None:
        frame = self.open[-1]
        frame.merging = plain and text == "<<"
        if plain and text in ("", "~", "null"):
            raise OrchError(
                "a key is missing before this `:`",
                code="E109",
                where=where,
                hint="keys are words; put a key such as 'null' in quotes",
            )
        if not frame.merging:
            folded = folded_key(text)
            if folded in frame.folded:
                first, place = frame.folded[folded]
                again = (
                    f"'{clipped(text)}' stands here a second time"
                    if first == text
                    else f"'{clipped(text)}' collides with '{clipped(first)}'"
                )
                line = f"; the first is in line {place.line}" if place.line is not None else ""
                raise OrchError(f"{again}{line}", code="E110", where=where, hint="keep one of them")
            frame.folded[folded] = text, where
        frame.key = text, where

    def _put(self, node: Node, anchor: str | None) -> None:
        if node.size > MAX_NODES:
            raise OrchError(
                f"holds more than {MAX_NODES:,} values once its anchors are expanded", code="E111", where=node.where
            )
        if anchor is not None:
            self.anchors[anchor] = node
        if not self.open:
            self.root = node
            return
        frame = self.open[-1]
        if frame.key is None:
            frame.listed.append(node)
            return
        (key, where), frame.key = frame.key, None
        if frame.merging:
            self._merge(frame, node, where)
        else:
            frame.entries[key] = Node(node.value, node.where, where, node.text, node.size)

    def _merge(self, frame: _Open, node: Node, where: Position) -> None:
        parts = node.value if isinstance(node.value, tuple) else (node,)
        if frame.merged or not all(isinstance(part.value, dict) for part in parts):
            hint = "write `<<: *anchor` or `<<: [*a, *b]`, once per mapping"
            raise OrchError("`<<` merges mappings only", code="E114", where=where, hint=hint)
        frame.merged.extend(parts)


def _check_tag(tag: str | None, where: Position, allowed: set[str]) -> None:
    if tag is not None and tag not in allowed:
        name = tag.replace("tag:yaml.org,2002:", "!!")
        raise OrchError(
            f"the tag {quoted(name)} is not used in recipes",
            code="E108",
            where=where,
            hint="write the value without it",
        )
