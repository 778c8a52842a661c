"""What the operating system knows of a process: its CPU time, whether it is stopped, that it dies with its parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

_PR_SET_PDEATHSIG = 1


def cpu_seconds(pid: int) -> float | None:
    """Return user and system seconds of `pid` and its children (compilers and loaders work for it); None when gone."""
    fields = _stat(pid)
    if fields is None:
        return None if sys.platform == "linux" else _psutil_cpu_seconds(pid)
    own = sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")  # the last two: children that ended
    return own + sum(cpu_seconds(child) or 0.0 for child in _children(pid))


def killed_for_memory() -> int:
    """Return how many processes this machine's kernel has killed for want of memory since it booted, whether of all the
    machine's or of a group's; 0 where it does not say.
    """
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except (OSError, ValueError):
        return 0


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(child) for child in file.read().split()]
    except (OSError, ValueError):
        return []


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


@contextlib.contextmanager
def kept_environment() -> Iterator[None]:
    """Put all environment variables back as they were after the block."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        for name, value in before.items():
            if os.environ.get(name) != value:
                os.environ[name] = value


@contextlib.contextmanager
def kept_handler(number: int) -> Iterator[None]:
    """Put the handler of a signal back after a block whose library installs its own."""
    before = signal.getsignal(number)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(number, before)


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Hold a Ctrl-C back until the block has ended; a second one comes through at once.

    For libraries that crash when interrupted half way. Does nothing outside the main thread, which alone is interrupted.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    held: list[tuple[int, FrameType | None]] = []

    def hold(number: int, frame: FrameType | None) -> None:
        if held:
            before(number, frame)
        held.append((number, frame))

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            before(*held[0])


def set_title(title: str) -> None:
    """Show `title` as this process's command line in ps and top; nothing happens where the system has no /proc."""
    fields = _stat(os.getpid())
    if fields is None or len(fields) < 47:
        return
    start, end = int(fields[45]), int(fields[46])
    text = title.encode()[: end - start - 1]
    if start and text:
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def describe_exit(status: int) -> str:
    """Return `signal 9` or `exit code 3` for a status as `os.waitstatus_to_exitcode` gives it."""
    return f"signal {-status}" if status < 0 else f"exit code {status}"
