"""Which file system a path lies on."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch.track.mounts import Mount, mount_of

TABLE = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:30 / /home rw,relatime shared:1 - nfs4 server:/home rw,vers=4.2
31 30 0:31 / /home/of\\040two rw - fuse.sshfs two@server: rw
32 22 0:32 / /scratch rw - lustre mds@tcp:/scratch rw
33 22 0:33 / /scratch rw - tmpfs tmpfs rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/var/lib", Mount("/", "ext4")),
        ("/homely", Mount("/", "ext4")),
        ("/home", Mount("/home", "nfs4")),
        ("/home/one", Mount("/home", "nfs4")),
        ("/home/of two", Mount("/home/of two", "fuse.sshfs")),
        ("/scratch/x", Mount("/scratch", "tmpfs")),
    ],
)
def test_the_longest_mount_point_holds_a_path(path: str, found: Mount) -> None:
    assert mount_of(Path(path), TABLE) == found


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.sshfs", "fuse.gcsfuse", "9p", "beegfs"])
def test_shared_file_systems_are_told(kind: str) -> None:
    assert Mount("/x", kind).network


@pytest.mark.parametrize("kind", ["ext4", "xfs", "tmpfs", "overlay", "fuse.ntfs", "unknown"])
def test_file_systems_of_this_machine_are_not(kind: str) -> None:
    assert not Mount("/x", kind).network


def test_a_link_is_followed(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/home/one")
    assert mount_of(link, TABLE).kind == "nfs4"


def test_this_machine_has_mounts() -> None:
    assert mount_of(Path("/proc")).kind == "proc"
