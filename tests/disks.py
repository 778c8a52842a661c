"""Small disks for tests of what happens on a full one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def _mounts() -> bool:
    """Whether this process may mount: tried in a name space of its own, where nothing stays."""
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "orch-test", "/tmp"]
    try:
        return os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


can_mount = pytest.mark.skipif(not _mounts(), reason="this user may not mount a disk")


@contextmanager
def disk(path: Path, size: str, options: str = "") -> Iterator[Path]:
    """Put a disk of `size` (`1536k`) at `path` for the length of a with block."""
    path.mkdir(exist_ok=True)
    words = ",".join(filter(None, [f"size={size}", options]))
    subprocess.run(["mount", "-t", "tmpfs", "-o", words, "orch-test", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
