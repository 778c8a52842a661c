"""Places for checkpoints: whole files or none, local or wherever fsspec reaches."""

from __future__ import annotations

import os

import pytest

from orch.errors import OrchError
from orch.runtime.storage import storage_of


@pytest.fixture(params=["path", "file", "memory"])
def storage(request, tmp_path):
    roots = {
        "path": str(tmp_path / "here"),
        "file": f"file://{tmp_path / 'here'}",
        "memory": f"memory://{tmp_path.name}",
    }
    return storage_of(roots[request.param])


def test_files_are_written_listed_read_and_removed(storage) -> None:
    assert storage.names("a") == []
    assert storage.write("a/one", [b"ab", memoryview(b"cd")]) == 4
    storage.write("a/one", [b"new"])
    storage.write("a/two", [])
    assert storage.names("a") == ["one", "two"]
    assert storage.read("a/one") == b"new"
    with pytest.raises(FileNotFoundError):
        storage.read("a/three")
    storage.remove("a")
    storage.remove("a")
    assert storage.names("a") == []


def test_a_file_that_cannot_be_finished_leaves_the_old_one(tmp_path) -> None:
    storage = storage_of(str(tmp_path))
    storage.write("x", [b"old"])

    def parts():
        yield b"half"
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        storage.write("x", parts())
    assert storage.read("x") == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(OrchError, match=r"^checkpoints cannot go to nowhere://x: Protocol not known: nowhere \[E660\]"):
        storage_of("nowhere://x")
