"""A tiny process that cleans up after a driver that could not: it outlives the driver by a second and leaves nothing.

It holds the read end of a pipe. While the driver lives it does nothing; when the pipe closes without a goodbye, the driver
was killed, and the janitor kills what carries the driver's tag in its environment or command line, removes the
directories it was told of, and runs the commands it was given (say, to mark a run directory as killed).

This file also is the janitor's program: run as a script, with nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

_KILL_FOR_S = 10.0


class Janitor:
    """The driver's side. Starts the janitor when there is first something to guard. Safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._next = 0

    def guard(self, *, tag: str = "", directory: str = "", command: Sequence[str] = ()) -> int:
        """Promise: should this process be killed, kill what carries `tag`, remove `directory`, then run `command`.

        Returns a number for `release`.
        """
        with self._lock:
            self._next += 1
            task = {"tag": tag, "directory": directory, "command": list(command), "cwd": os.getcwd()}
            self._say({"guard": self._next, "task": task})
            return self._next

    def release(self, number: int) -> None:
        """Take a promise back: whatever it was about has ended in order."""
        with self._lock:
            if self._process is not None:
                self._say({"release": number})

    def _say(self, message: dict[str, Any]) -> None:
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self._owner = os.getpid()
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={"PATH": os.environ.get("PATH", os.defpath)},  # never the tag itself
            )
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # a janitor that was killed is no reason to fail
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()


JANITOR = Janitor()


def sweep(tag: str, directory: str) -> None:
    """Kill every process of ours that carries `tag`, until none is left, then remove `directory`."""
    deadline = time.monotonic() + _KILL_FOR_S
    while tag and time.monotonic() < deadline:
        found = _tagged(tag)
        if not found:
            break
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    if directory:
        shutil.rmtree(directory, ignore_errors=True)


def _tagged(tag: str) -> list[int]:
    needle = os.fsencode(tag)
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            state = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()[:1]
            seen = _read(f"/proc/{name}/environ") + b"\0" + _read(f"/proc/{name}/cmdline")
            if needle in seen and state not in ([b"Z"], [b"X"]):
                found.append(int(name))
    return found


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    tasks: dict[int, dict[str, Any]] = {}
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "guard" in message:
            tasks[message["guard"]] = message["task"]
        else:
            tasks.pop(message["release"], None)
    for task in tasks.values():
        sweep(task["tag"], task["directory"])
    for task in tasks.values():
        if task["command"]:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run(task["command"], cwd=task["cwd"], timeout=60, check=False)


if __name__ == "__main__":
    _main()
