"""Read a file that a recipe names, without trusting its kind or its size: a device has no end, and a pipe no beginning."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

MOST_BYTES = 64 << 20
"""No profile of a real model comes near."""


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """Return the text of a regular file. OSError: there is none, it is of another kind, or larger. ValueError: no UTF-8."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)  # of /proc no size is told
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes / 2**20:g} MiB")
    return data.decode("utf-8")
