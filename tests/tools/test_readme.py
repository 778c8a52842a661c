"""The runner of documents: finds blocks, compares outputs, and reports what does not hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import readme

TEXT = """\
# Title

```console
$ echo one
one
$ echo two; echo three
t...
```

```text
$ not run
```

```python
assert 1 + 1 == 3
```

See [this](that.md#part) and ![a picture](p.svg).
"""


def test_blocks_know_their_language_and_line() -> None:
    assert [(block.language, block.line) for block in readme.blocks(TEXT)] == [
        ("console", 3),
        ("text", 10),
        ("python", 14),
    ]


@pytest.mark.parametrize(
    ("expected", "output", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\n", "a\nb\n", False),
        ("a\n...\n", "a\n", True),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a ...ms\n", "a 12 ms\n", True),
        ("a ...ms\n", "a 12 s\n", False),
        ("a  \n", "a\n", True),
        ("", "", True),
        ("", "a\n", False),
        ("(x) [y]\n", "(x) [y]\n", True),
    ],
)
def test_dots_stand_for_anything_and_nothing_else_does(expected: str, output: str, same: bool) -> None:
    assert readme.matches(expected, output) is same


def test_what_does_not_hold_is_reported(tmp_path: Path) -> None:
    console, text, python = readme.blocks(TEXT)
    (fault,) = readme.faults(console, tmp_path)
    assert fault.startswith("line 3: `echo two; echo three` printed\ntwo\nthree\n")
    assert list(readme.faults(text, tmp_path)) == []
    (fault,) = readme.faults(python, tmp_path)
    assert "AssertionError" in fault


def test_a_recipe_says_where_it_stands_and_is_checked(tmp_path: Path) -> None:
    (unnamed,) = readme.faults(readme.Block("yaml", "orch: 1\n", 7), tmp_path)
    assert unnamed.startswith("line 7: a recipe's first line names its file")
    (wrong,) = readme.faults(readme.Block("yaml", "# recipes/r.yaml: r\norch: 1\n", 7), tmp_path)
    assert "the yaml block fails" in wrong
    assert "[E2" in wrong


def test_targets_of_make_must_exist(tmp_path: Path) -> None:
    assert list(readme.faults(readme.Block("sh", "make test  # all\ngit clone x\n", 1), tmp_path)) == []
    assert list(readme.faults(readme.Block("sh", "make tea\n", 1), tmp_path)) == [
        "line 1: the Makefile has no target tea"
    ]


def test_recorded_output_is_replaced_by_what_the_command_prints_now(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text(
        "x\n<!-- recorded: echo new; echo err >&2; pwd -->\n```text\nold\n```\n```text\nkept\n```\n", encoding="utf-8"
    )
    assert readme.main(["--record", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    (command, output), *rest = readme.recorded(text)
    assert (command, rest) == ("echo new; echo err >&2; pwd", [])
    assert output.startswith("new\n/")
    assert "old" not in text
    assert text.endswith("```text\nkept\n```\n")
    path.write_text("<!-- recorded: exit 3 -->\n```text\nold\n```\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="`exit 3` fails with 3"):
        readme.record(path)


def test_links_are_found_without_their_anchors() -> None:
    assert readme.links(TEXT) == ["that.md", "p.svg"]
