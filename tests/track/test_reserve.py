"""Room kept back: taken whole or not at all, set free once."""

from __future__ import annotations

import errno

import pytest

from orch.track import reserve
from tests.disks import can_mount, disk


def test_room_is_taken_and_set_free_in_parts(tmp_path) -> None:
    reserve.take(tmp_path)
    assert (tmp_path / reserve.FILE).stat().st_size == reserve.SIZE_BYTES
    parts = reserve.SIZE_BYTES // reserve.PART_BYTES
    assert [reserve.give(tmp_path) for _ in range(parts + 1)] == [True] * parts + [False]
    reserve.drop(tmp_path)
    assert not reserve.give(tmp_path)
    assert list(tmp_path.iterdir()) == []


@can_mount
def test_half_of_it_is_none(tmp_path) -> None:
    with disk(tmp_path / "small", "512k") as small:
        with pytest.raises(OSError, match="No space left") as caught:
            reserve.take(small)
        assert list(small.iterdir()) == []
    assert reserve.is_full(caught.value)
    assert not reserve.is_full(OSError(errno.EIO, "Input/output error"))
