"""The picture of README: kept equal to what the simulator says now."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from tools import picture

ROOT = Path(__file__).resolve().parents[2]


def test_the_kept_picture_is_the_drawn_one(tmp_path: Path) -> None:
    assert picture.main([str(tmp_path / "now.svg")]) == 0
    drawn = (tmp_path / "now.svg").read_text(encoding="utf-8")
    assert drawn == (ROOT / "docs" / "timelines.svg").read_text(encoding="utf-8"), "run: python tools/picture.py"
    ET.fromstring(drawn)


def test_neighbours_of_one_kind_are_one_bar_and_collectives_are_not() -> None:
    class Op:
        def __init__(self, kind: str) -> None:
            self.kind = kind

    class Task:
        def __init__(self, kind: str) -> None:
            self.op = Op(kind)

    spans = [
        picture.Span(Task(kind), 0, start, start + 1)
        for kind, start in [
            ("forward", 0.0),
            ("forward", 1.0),
            ("backward", 2.0),
            ("all_reduce", 3.0),
            ("all_reduce", 4.0),
        ]
    ]
    assert list(picture.merged(spans)) == [
        ("forward", 0.0, 2.0),
        ("backward", 2.0, 3.0),
        ("all_reduce", 3.0, 4.0),
        ("all_reduce", 4.0, 5.0),
    ]


def test_what_is_outside_the_window_is_cut() -> None:
    scale = picture.Scale(start_s=1.0, length_s=2.0)
    assert scale.x(0.0) == scale.x(1.0) == picture.LEFT
    assert scale.x(9.0) == picture.WIDTH - 12
