"""The disks that runs write to: room, and whether a file system is shared with other machines."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from orch.doctor.finding import Finding, gigabytes, lacking, noted, ok
from orch.track import settings
from orch.track.mounts import mount_of

_ROOM_BYTES = 1 << 30


def runs_disk(runs: Path) -> Finding:
    """Look at the disk that holds the directory of runs, which need not exist yet."""
    return _disk("runs", runs, sqlite=settings.store_of(runs).file is not None)


def temporary_disk() -> Finding:
    """Look at the disk of temporary files, where Ray keeps its sockets and logs."""
    place = Path(tempfile.gettempdir())
    mount = mount_of(place)
    if mount.network:
        return lacking(
            "temp", f"{place} is on {mount.kind}", "Ray's sockets do not work there", "TMPDIR=/tmp of this machine"
        )
    return _disk("temp", place, sqlite=False)


def _disk(name: str, path: Path, sqlite: bool) -> Finding:
    place = path
    while not place.exists():
        place = place.parent
    mount = mount_of(place)
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    text = f"{path} on {mount.kind}, {gigabytes(free)} free"
    if not os.access(place, os.W_OK):
        return lacking(
            name, f"{text}, not writable", "nothing can be kept there", f"--runs DIR, or {settings.RUNS_VARIABLE}"
        )
    if mount.network and sqlite:
        cost = "a network file system: sqlite's locks are not sure there, so the index may be damaged"
        return noted(
            name, text, cost, f"{settings.STORE_VARIABLE}=sqlite:////a/local/disk/mlflow.db, or runs on a local disk"
        )
    if free < _ROOM_BYTES:
        return noted(name, text, "a run that fills it stops", "make room")
    return ok(name, text)
