"""Files that recipes name: only regular ones are read, and not more of them than a limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orch.errors import OrchError
from orch.models import catalogue, tables
from orch.models.files import read_text


def test_a_regular_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("h\u00e9llo", encoding="utf-8")
    assert read_text(path, 6) == "h\u00e9llo"
    with pytest.raises(OSError, match="larger than"):
        read_text(path, 5)


@pytest.mark.parametrize("kind", ["device", "pipe", "folder"])
def test_what_has_no_end_or_no_beginning_is_not_read(tmp_path: Path, kind: str) -> None:
    path = {"device": Path("/dev/zero"), "pipe": tmp_path / "pipe", "folder": tmp_path}[kind]
    if kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file"):
        read_text(path)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"\xff\xfe", "is no profile"),
        (b"[" * 100_000, "is no profile"),
        (b"9" * 10_000, "is no profile"),
        (b"[]", "it holds no object"),
        (b"{}", "not a profile"),
        (b'{"name": 3, "modules": [3]}', "not a profile"),
        (b'{"name": "a", "modules": 3}', "not a profile"),
        (b'{"name": "a", "modules": [], "tensors": [[]]}', "not a profile"),
    ],
)
def test_a_profile_that_is_none_is_said_in_one_line(tmp_path: Path, data: bytes, line: str) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(data)
    with pytest.raises(OrchError, match=line):
        catalogue.read_profile(path)


def test_a_profile_or_table_that_is_a_device_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OrchError, match="/dev/zero is no profile: it is not a regular file"):
        catalogue.read_profile(Path("/dev/zero"))
    (tmp_path / "modules.csv").symlink_to("/dev/zero")
    with pytest.raises(OrchError, match="cannot read the table: it is not a regular file"):
        tables.load(tmp_path)
