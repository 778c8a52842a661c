"""The janitor: nothing while the driver lives, everything when it is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from orch.gang.janitor import Janitor, sweep

DRIVER = """
import subprocess, sys
from orch.gang.janitor import JANITOR
tag, directory, marker, released = sys.argv[1:]
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)", tag], start_new_session=True)
number = JANITOR.guard(tag=tag, directory=directory, command=["touch", marker])
if released == "released":
    JANITOR.release(number)
print("ready", flush=True)
sys.stdin.read()
"""


def becomes_true(condition: Callable[[], bool], within_s: float = 10.0) -> bool:
    """Poll `condition`; tell whether it held in time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def carriers(tag: str) -> list[int]:
    """Return the living processes whose command line or environment carries `tag`, this one left out."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = Path(f"/proc/{name}/cmdline").read_bytes() + Path(f"/proc/{name}/environ").read_bytes()
            alive = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            continue
        if tag.encode() in text and alive and int(name) != os.getpid():
            found.append(int(name))
    return found


def start(tmp_path: Path, released: str) -> tuple[subprocess.Popen[str], str, Path, Path]:
    tag, directory, marker = f"orch-test-{os.getpid()}-{tmp_path.name}", tmp_path / "session", tmp_path / "marker"
    directory.mkdir()
    command = [sys.executable, "-c", DRIVER, tag, str(directory), str(marker), released]
    driver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    assert driver.stdout.readline() == "ready\n"
    return driver, tag, directory, marker


def test_a_killed_driver_leaves_nothing(tmp_path: Path) -> None:
    driver, tag, directory, marker = start(tmp_path, "kept")
    assert len(carriers(tag)) == 2
    driver.kill()
    driver.wait()
    assert becomes_true(marker.exists)
    assert not directory.exists()
    assert carriers(tag) == []


def test_a_promise_taken_back_is_not_kept(tmp_path: Path) -> None:
    driver, tag, directory, marker = start(tmp_path, "released")
    driver.kill()
    driver.wait()
    left = carriers(tag)
    assert len(left) == 1
    assert directory.exists()
    assert not marker.exists()
    sweep(tag, str(directory))
    assert carriers(tag) == []
    assert not directory.exists()


def test_a_killed_janitor_is_replaced(tmp_path: Path) -> None:
    janitor = Janitor()
    janitor.guard(directory=str(tmp_path / "first"))
    assert janitor._process is not None
    first = janitor._process
    first.kill()
    first.wait()
    number = janitor.guard(directory=str(tmp_path / "second"))
    assert janitor._process is not first
    janitor.release(number)
    janitor._process.stdin.close()  # type: ignore[union-attr]
    assert janitor._process.wait(10) == 0
