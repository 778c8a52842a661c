"""Reading YAML: places of keys and values, what is refused, and that nothing can exhaust the machine."""

# ruff: noqa: E501 - one case a line

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orch.errors import OrchError
from orch.recipe.source import Origin, read_file, read_text

ORIGIN = Origin("r.yaml")


def read(text: str) -> object:
    return read_text(text, ORIGIN).plain()


def fault(text: str | bytes, folder: Path) -> str:
    path = folder / "r.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    with pytest.raises(OrchError) as caught:
        read_file(path)
    message = str(caught.value)
    assert message.isprintable()
    return message.removeprefix(str(folder) + os.sep)


def test_every_key_and_value_knows_its_place() -> None:
    tree = read_text("a: 1\nb:\n  - {c: x}\n  - 'y'\n", ORIGIN)
    places = {
        path: (str(node.place), str(node.where))
        for path in [("a",), ("b",), ("b", "0", "c"), ("b", "1")]
        if (node := tree.find(path)) is not None
    }
    assert places == {
        ("a",): ("r.yaml:1:1", "r.yaml:1:4"),
        ("b",): ("r.yaml:2:1", "r.yaml:3:3"),
        ("b", "0", "c"): ("r.yaml:3:6", "r.yaml:3:9"),
        ("b", "1"): ("r.yaml:4:5", "r.yaml:4:5"),
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no: n\non: push\nname: NO\n", {"no": "n", "on": "push", "name": "NO"}),
        ("1: a\ntrue: b\n2026-01-01: c\n", {"1": "a", "true": "b", "2026-01-01": "c"}),
        ("a: '1'\nb: \"1\"\nc: 1\n", {"a": "1", "b": "1", "c": 1}),
        ("a: !!str 1\nb: ! 1\nc: !!map {}\nd: !!seq []\n", {"a": "1", "b": "1", "c": {}, "d": []}),
        ("base: &b {x: 1, y: 2}\na: {<<: *b, y: 3}\n", {"base": {"x": 1, "y": 2}, "a": {"x": 1, "y": 3}}),
        ("p: &p {x: 1}\nq: &q {x: 2, z: 3}\na: {y: 0, <<: [*p, *q]}\n",
         {"p": {"x": 1}, "q": {"x": 2, "z": 3}, "a": {"x": 1, "y": 0, "z": 3}}),
        ("a: &x [1, 2]\nb: *x\n", {"a": [1, 2], "b": [1, 2]}),
        ("'<<': 1\n", {"<<": 1}),
        ("a: |\n  one\n  two\n", {"a": "one\ntwo\n"}),
        ("%YAML 1.2\n---\na: 1\n...\n", {"a": 1}),
        ("a: 'it''s'\nb: x#y\nc: x #y\n", {"a": "it's", "b": "x#y", "c": "x"}),
        ("a:\t1\n", {"a": 1}),
        ("a: 1.10\n", {"a": 1.1}),
    ],
)  # fmt: skip
def test_what_a_file_says(text: str, value: object) -> None:
    assert read(text) == value


def test_byte_order_mark_and_line_ends_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    for text in ("\ufeffa: 1\nb: 2\n", "a: 1\r\nb: 2\r\n", "a: 1\rb: 2"):
        path.write_bytes(text.encode())
        assert read_file(path).plain() == {"a": 1, "b": 2}


def test_a_word_keeps_how_it_was_written() -> None:
    node = read_text("a: 1.10\n", ORIGIN).get("a")
    assert node is not None
    assert (node.value, node.as_text().value) == (1.1, "1.10")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # Empty and other shapes.
        ("", "r.yaml:1:1: is empty; `orch new recipe NAME` writes a start [E104]"),
        ("# only a comment\n", "r.yaml:1:1: is empty; `orch new recipe NAME` writes a start [E104]"),
        ("---\n...\n", "r.yaml:1:1: is empty; `orch new recipe NAME` writes a start [E104]"),
        ("null", "r.yaml:1:1: is empty; `orch new recipe NAME` writes a start [E104]"),
        ("- a", "r.yaml:1:1: holds no `key: value` lines at its top level [E105]"),
        ("3", "r.yaml:1:1: holds no `key: value` lines at its top level [E105]"),
        ("a: 1\n---\nb: 2\n", "r.yaml:2:1: a second document begins here (`---`); a recipe is one document; use one file each [E107]"),
        # Keys.
        ("a: 1\na: 2\n", "r.yaml:2:1: 'a' stands here a second time; the first is in line 1; keep one of them [E110]"),
        ("a:\n  b: 1\n  b: 2\n", "r.yaml:3:3: 'b' stands here a second time; the first is in line 2; keep one of them [E110]"),
        ("{a: 1, a: 2}", "r.yaml:1:8: 'a' stands here a second time; the first is in line 1; keep one of them [E110]"),
        ("1: a\n'1': b\n", "r.yaml:2:1: '1' stands here a second time; the first is in line 1; keep one of them [E110]"),
        ("true: a\n'true': b\n", "r.yaml:2:1: 'true' stands here a second time; the first is in line 1; keep one of them [E110]"),
        ("batch_size: 1\nbatch-size: 2\n", "r.yaml:2:1: 'batch-size' collides with 'batch_size'; the first is in line 1; keep one of them [E110]"),
        ("lr: 1\nLR: 2\n", "r.yaml:2:1: 'LR' collides with 'lr'; the first is in line 1; keep one of them [E110]"),
        ("\u00e9: 1\ne\u0301: 2\n", "r.yaml:2:1: 'e\u0301' collides with '\u00e9'; the first is in line 1; keep one of them [E110]"),
        ("~: 1\n", "r.yaml:1:1: a key is missing before this `:`; keys are words; put a key such as 'null' in quotes [E109]"),
        ("[a, b]: 1\n", "r.yaml:1:1: a key must be one word, not a mapping or a list; quote text that holds { or [ [E109]"),
        ("? {a: 1}\n: 2\n", "r.yaml:1:3: a key must be one word, not a mapping or a list; quote text that holds { or [ [E109]"),
        ("a: &x b\n*x : 1\n", "r.yaml:2:1: a key cannot be an alias; write the key out [E109]"),
        # Anchors and merges.
        ("a: *x\n", "r.yaml:1:4: *x names no anchor above it; text that begins with * needs quotes [E112]"),
        ("a: &x [*x]\n", "r.yaml:1:8: *x stands inside the value it names [E112]"),
        ("a: {<<: 3}\n", "r.yaml:1:5: `<<` merges mappings only; write `<<: *anchor` or `<<: [*a, *b]`, once per mapping [E114]"),
        ("a: {<<: [1]}\n", "r.yaml:1:5: `<<` merges mappings only; write `<<: *anchor` or `<<: [*a, *b]`, once per mapping [E114]"),
        ("b: &b {x: 1}\na: {<<: *b, <<: *b}\n", "r.yaml:2:13: `<<` merges mappings only; write `<<: *anchor` or `<<: [*a, *b]`, once per mapping [E114]"),
        # Tags.
        ("a: !!python/object:os.system x\n", "r.yaml:1:4: the tag '!!python/object:os.system' is not used in recipes; write the value without it [E108]"),
        ("a: !!int '3'\n", "r.yaml:1:4: the tag '!!int' is not used in recipes; write the value without it [E108]"),
        ("a: !env HOME\n", "r.yaml:1:4: the tag '!env' is not used in recipes; write the value without it [E108]"),
        ("a: !!set {x}\n", "r.yaml:1:4: the tag '!!set' is not used in recipes; write the value without it [E108]"),
        ("a: !!map x\n", "r.yaml:1:4: the tag '!!map' is not used in recipes; write the value without it [E108]"),
        # Numbers.
        ("a: 1e400\n", "r.yaml:1:4: 1e400 is larger than any number orch can hold (about 1.8e308) [E113]"),
        # Syntax.
        ("\ta: 1\n", "r.yaml:1:1: a tab indents this line; YAML indents with spaces only [E106]"),
        ("a:\n\tb: 1\n", "r.yaml:2:1: a tab indents this line; YAML indents with spaces only [E106]"),
        ("a:\n  b: 1\n  \tc: 2\n", "r.yaml:3:3: a tab indents this line; YAML indents with spaces only [E106]"),
        ("a: @x\n", "r.yaml:1:4: a value cannot begin with '@'; put it in quotes: '@x' [E106]"),
        ("a: b: c\n", "r.yaml:1:5: a second `:` in one line, or a line indented too far; a value that holds `: ` needs quotes; otherwise check the indentation [E106]"),
        ("a: 1\n b: 2\n", "r.yaml:2:3: a second `:` in one line, or a line indented too far; a value that holds `: ` needs quotes; otherwise check the indentation [E106]"),
        ("a: [1, 2\n", "r.yaml:2:1: not valid YAML: did not find expected ',' or ']' while parsing a flow sequence that begins in line 1 [E106]"),
        ("a: 'x\n", "r.yaml:2:1: not valid YAML: found unexpected end of stream while scanning a quoted scalar that begins in line 1 [E106]"),
        ("a: {b: ???}\n", "r.yaml:1:8: ??? inside { } or [ ] needs quotes; write '???' [E106]"),
        ("a: [1, ???]\n", "r.yaml:1:8: ??? inside { } or [ ] needs quotes; write '???' [E106]"),
        # Not text.
        ("a: \x07\n", "r.yaml:1:4: a control character is not allowed in YAML; remove it, or write it as an escape in double quotes [E102]"),
        (b"PK\x03\x04\x00\x00", "r.yaml:1:5: is a binary file, not YAML [E102]"),
        (b"\x89PNG\r\n\x1a\n", "r.yaml:1:1: the byte 0x89 is not UTF-8; save the file as UTF-8 [E103]"),
        (b"a: 1\nb: \xe9t\xe9\n", "r.yaml:2:4: the byte 0xe9 is not UTF-8; save the file as UTF-8 [E103]"),
        ("a: 1".encode("utf-16"), "r.yaml: is UTF-16; save it as UTF-8 [E103]"),
        # Depth.
        ("a: " + "[" * 50 + "]" * 50, "r.yaml:1:43: nested more than 40 levels deep [E111]"),
        ("[" * 100_000, "r.yaml:1:1001: nested more than 40 levels deep [E111]"),
    ],
)  # fmt: skip
def test_what_is_refused_is_one_line(text: str | bytes, message: str, tmp_path: Path) -> None:
    assert fault(text, tmp_path) == message


@pytest.mark.parametrize(
    "opening", ["[*{0}, *{0}, *{0}, *{0}, *{0}, *{0}, *{0}, *{0}, *{0}]", "{{x: *{0}, y: *{0}, z: *{0}}}"]
)
def test_exploding_anchors_end_at_once(opening: str, tmp_path: Path) -> None:
    lines = ["a0: &a0 [lol, lol, lol]"]
    lines += [f"a{level}: &a{level} {opening.format(f'a{level - 1}')}" for level in range(1, 30)]
    begin = time.process_time()
    assert "holds more than 50,000 values once its anchors are expanded [E111]" in fault("\n".join(lines), tmp_path)
    assert time.process_time() - begin < 1


def test_a_large_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    with path.open("wb") as file:
        file.truncate(50_000_000)
    with pytest.raises(OrchError, match=r"is 50.0 MB; a recipe has at most 1 MiB; is this the right file\? \[E102\]"):
        read_file(path)


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "quickstart.yaml").write_text("a: 1")
    os.mkfifo(tmp_path / "pipe")
    for name, message in {
        "": r"is a directory, not a file; name the YAML file inside it \[E101\]",
        "pipe": r"is not a regular file; name a YAML file \[E101\]",
        "quikstart.yaml": r"there is no such file; did you mean quickstart.yaml\? \[E100\]",
        "quickstart.yaml/x": r"cannot be read: Not a directory \[E101\]",
        "x" * 300: r"cannot be read: File name too long \[E101\]",
        "none/x.yaml": r"there is no such file; orch list recipes names the ones that can be found \[E100\]",
    }.items():
        with pytest.raises(OrchError, match=message):
            read_file(tmp_path / name)


def test_a_file_without_permission_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("a: 1")

    def refuse(*args: object, **kwargs: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root may read everything, so the mode of the file cannot decide
    with pytest.raises(OrchError, match=r"cannot be read: Permission denied \[E101\]"):
        read_file(path)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_tree_or_one_line(data: bytes) -> None:
    from orch.recipe.source import _decode

    try:
        read_text(_decode(data, "r.yaml"), ORIGIN)
    except OrchError as error:
        assert str(error).startswith("r.yaml")  # noqa: PT017 - either outcome is right


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=" \t\n:-[]{}#&*!|>'\"%@`?,<~ab1.", max_size=60))
def test_any_punctuation_is_a_tree_or_one_line(text: str) -> None:
    try:
        node = read_text(text, ORIGIN)
    except OrchError as error:
        assert str(error).startswith("r.yaml:")  # noqa: PT017 - either outcome is right
    else:
        assert isinstance(node.plain(), dict)
