"""Which file system a path lies on, and whether it is one that other machines share.

sqlite's locks, Unix sockets and atomic renames are only sure on a file system of this machine's own.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs", "orangefs", "panfs",
     "wekafs", "9p", "virtiofs", "ocfs2", "gfs2", "sshfs", "s3fs", "gcsfuse", "juicefs", "rclone", "mountpoint-s3",
     "goofys", "pvfs2", "daos", "vboxsf", "fuse.dfuse"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system: where, and of which kind (`unknown` where the system does not say)."""

    point: str
    kind: str

    @property
    def network(self) -> bool:
        """Whether other machines may share it."""
        return self.kind in NETWORK or self.kind.removeprefix("fuse.") in NETWORK


def mount_of(path: Path, table: str | None = None) -> Mount:
    """Return the file system that holds `path`, which need not exist yet. `table`: the text of /proc/self/mountinfo."""
    if table is None:
        try:
            table = Path("/proc/self/mountinfo").read_text("utf-8", errors="surrogateescape")
        except OSError:
            return Mount("/", "unknown")
    place = os.path.realpath(path)
    best = Mount("/", "unknown")
    for line in table.splitlines():
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if len(fields) < 5 or not kinds:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4])
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best.point):  # a later mount on the same point hides the earlier one
            best = Mount(point, kinds[0])
    return best
