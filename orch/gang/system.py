"""What the operating system knows of a process: its CPU time, whether it is stopped, that it dies with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def cpu_seconds(pid: int) -> float | None:
    """Return user and system seconds of all threads of `pid`; None when it is gone or the system does not say."""
    fields = _stat(pid)
    if fields is not None:
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return None if sys.platform == "linux" else _psutil_cpu_seconds(pid)


def is_stopped(pid: int) -> bool:
    """Tell whether `pid` was stopped by a signal or a debugger."""
    fields = _stat(pid)
    return fields is not None and fields[0] in ("T", "t")


def _stat(pid: int) -> list[str] | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None


def _psutil_cpu_seconds(pid: int) -> float | None:
    import psutil

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    return float(times.user + times.system)


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when the thread that made it ends; leave at once if it is gone already.

    Only Linux can; elsewhere an end-of-file on the control connection has to do.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def describe_exit(status: int) -> str:
    """Return `signal 9` or `exit code 3` for a status as `os.waitstatus_to_exitcode` gives it."""
    return f"signal {-status}" if status < 0 else f"exit code {status}"
