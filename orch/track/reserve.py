"""Room on the disk that a run keeps back, so that its last steps, its results and its true end still fit on a full one."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

FILE = ".reserve"
SIZE_BYTES, PART_BYTES = 1 << 20, 1 << 16
_FULL = (errno.ENOSPC, errno.EDQUOT)


def take(run: Path) -> None:
    """Keep room in the directory of a run. Raises OSError where there is none, and leaves nothing then."""
    path = run / FILE
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, SIZE_BYTES)
        else:
            os.write(handle, bytes(SIZE_BYTES))
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(handle)


def give(run: Path) -> bool:
    """Set a part of the room free; tell whether there was any left. In parts, for others on the disk may be quicker."""
    path = run / FILE
    try:
        left = path.stat().st_size
        os.truncate(path, max(0, left - PART_BYTES))
    except OSError:
        return False
    return left > 0


def is_full(error: OSError) -> bool:
    """Whether a disk, or a user's share of it, has no room left."""
    return error.errno in _FULL


def drop(run: Path) -> None:
    """Set the room free, if there is any: the run is over."""
    with suppress(OSError):
        (run / FILE).unlink(missing_ok=True)
