"""The size rules find what they are for, in a tree broken on purpose, and nothing in a tree that keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import house

LATER = "".join(["TO", "DO"])
MACHINE = "/".join(["", "work", "somewhere", ""])
BROKEN = {
    "orch/long.py": ('"""Long."""\n' + "x = 1\n" * 400, "orch/long.py: 401 lines; at most 400"),
    "orch/deep.py": (
        '"""Deep."""\n\n\ndef deep():\n' + "    x = 1\n" * 60,
        "orch/deep.py:4: deep has 61 lines; at most 60",
    ),
    "orch/wide.py": (
        '"""Wide."""\nclass Wide:\n    def __init__(self, a, b, c, d, e, f, g, *, h, i):\n        pass\n',
        "orch/wide.py:2: Wide is made of 9 parameters; at most 8",
    ),
    "orch/record.py": (
        '"""Record."""\n@dataclass(frozen=True)\nclass Record:\n' + "".join(f"    f{n}: int\n" for n in range(9)),
        "orch/record.py:3: Record is made of 9 parameters; at most 8",
    ),
    "orch/mute.py": ("x = 1\n", "orch/mute.py: no module docstring"),
    "orch/later.py": (f'"""Later."""\n# {LATER}: write it\n', f"orch/later.py:2: {LATER}: finish it or leave it out"),
    "docs/here.md": (f"see {MACHINE}x\n", "docs/here.md:1: holds a path of one machine"),
    "tests/test_nothing_like_it.py": (
        '"""Lost."""\ndef test_it():\n    assert 1\n',
        "tests/test_nothing_like_it.py: mirrors no source; tests/<path>/test_<module>.py tests <path>/<module>.py",
    ),
    "tests/test_fine.py": (
        '"""Blind."""\ndef test_it():\n    fine()\n',
        "tests/test_fine.py:2: test_it asserts nothing",
    ),
}
FINE = {
    "orch/fine.py": '"""Fine."""\n' + "x = 1\n" * 399,
    "orch/sub/__init__.py": "",
    "orch/sub/kind.py": '"""Kind."""\nclass K:\n    def __init__(self, a, b, c, d, e, f, g, h):\n        pass\n',
    "techniques/schedules/dear.py": '"""DeAR."""\n',
    "README.md": "# read\n",
    "tests/sub/test_kind.py": '"""Kind."""\ndef test_it():\n    assert kind\n',
    "tests/techniques/schedules/test_dear.py": '"""DeAR."""\ndef test_it():\n    with raises(E):\n        f()\n',
    "tests/test_readme.py": '"""Blocks."""\ndef test_it():\n    assert blocks\n',
    "tests/test_house.py": '"""Helper."""\ndef same(a):\n    assert a\ndef test_it():\n    same(1)\n',
    "tools/house.py": '"""House."""\n',
    "tests/test_sub.py": '"""Package."""\ndef test_it():\n    assert sub\n',
}


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


def test_a_tree_that_keeps_the_rules_is_silent(tmp_path: Path) -> None:
    write(tmp_path, FINE)
    assert list(house.breaches(tmp_path)) == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_breach_is_one_line(tmp_path: Path, name: str) -> None:
    text, line = BROKEN[name]
    write(tmp_path, {**FINE, name: text})
    assert list(house.breaches(tmp_path)) == [line]


def test_breaches_decide_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, FINE)
    assert house.main([str(tmp_path)]) == 0
    write(tmp_path, {"orch/mute.py": "x = 1\n"})
    assert house.main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == "orch/mute.py: no module docstring\n"
