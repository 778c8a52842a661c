"""Cores, memory, shared memory, devices, the clock and the limits of this process, as the system tells them."""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys
from pathlib import Path

from orch.doctor.finding import Finding, gigabytes, lacking, noted, ok
from orch.doctor.software import Loaded
from orch.gang import machine
from orch.track.environment import hardware

# A local Ray with four workers that have torch loaded took 1.6 GiB, and a node of an emulated cluster takes 0.8.
_COMFORTABLE_BYTES = 2 << 30
_SHARED_BYTES = 256 << 20  # Ray's object store (100 MiB) and room beside it
_OPEN_FILES = 4096
_TIMEX_BYTES = 512  # more than struct timex has on any system
_UNSYNCHRONISED = 0x40


def cores() -> Finding:
    """Look at the cores this process may use, and at the quota of its control group."""
    usable, present = machine.num_cores(), os.cpu_count() or 1
    text = f"{usable} of {present}" if usable != present else str(present)
    quota = _quota()
    if quota is not None and quota < usable:
        cost = "workers are paused when it is used up: step times jump"
        return noted(
            "cores", f"{text}, held to {quota:.1f} by the control group", cost, "raise cpu.max of the container"
        )
    if usable == 1:
        return noted("cores", text, "several workers take turns on it: no gain can be told apart", "use more cores")
    return ok("cores", f"{text}, {hardware()['cpu']}")


def memory() -> Finding:
    """Look at the memory that new processes could use."""
    free, limit = machine.free_bytes(), _group_value("memory.max")
    if free is None:
        return noted("memory", "the system does not say", "too large a gang is not refused", "watch it yourself")
    used = _group_value("memory.current")
    if limit is not None and used is not None and limit - used < free:
        free = limit - used
        text = f"{gigabytes(max(0, free))} free of the {gigabytes(limit)} of its control group"
    else:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        text = f"{gigabytes(free)} free of {gigabytes(total)}"
    if free < _COMFORTABLE_BYTES:
        return noted(
            "memory", text, "a local Ray with four workers takes some 1.6 GiB", "--on processes takes 0.6 GiB less"
        )
    return ok("memory", text)


def shared_memory() -> Finding:
    """Look at /dev/shm, where Ray keeps objects."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return noted("/dev/shm", "not there", "Ray keeps objects on disk, which is slow", "mount a tmpfs there")
    free = found.f_bavail * found.f_frsize
    text = f"{gigabytes(free)} free"
    if free < _SHARED_BYTES:
        return noted("/dev/shm", text, "Ray falls back to the disk", "docker run --shm-size 1g, or free some of it")
    return ok("/dev/shm", text)


def devices(torch: Loaded) -> Finding:
    """Look at GPUs: those the system has, and those torch can use."""
    present = machine.num_gpus()
    usable = torch.facts.get("devices", [])
    if usable:
        kinds = ", ".join(f"{usable.count(name)} x {name}" for name in dict.fromkeys(usable))
        return ok("devices", kinds)
    cost = "clusters whose device is a gpu can be planned, not run"
    if present:
        why = "torch is a CPU build" if torch.works and not torch.facts.get("cuda") else "torch does not see them"
        return lacking(
            "devices", f"{present} GPUs, but {why}", cost, "install a CUDA build of torch, look at nvidia-smi"
        )
    return ok("devices", f"no GPU; {cost}")


def clock() -> Finding:
    """Look at what drives the clock and whether it follows a time server."""
    try:
        source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource").read_text("ascii").strip()
    except OSError:
        source = "unknown"
    if source in ("hpet", "acpi_pm", "jiffies", "refined-jiffies"):
        cost = "each look at the time costs about a microsecond, and steps record dozens"
        return noted("clock", f"source {source}", cost, "boot with clocksource=tsc if the processor has a steady one")
    known = _time_status()
    if known is None or known[0]:
        text = f"source {source}" + (", not kept by a time server" if known else "")
        if known is None:
            return ok("clock", text)
        return noted(
            "clock", text, "machines of one run may disagree on the time of day", "start chrony or systemd-timesyncd"
        )
    return ok("clock", f"source {source}, within {1e-3 * known[1]:.0f} ms of a time server")


def _time_status() -> tuple[bool, int] | None:
    """Return whether the kernel takes its clock for unsynchronised, and its largest error in microseconds."""
    if sys.platform != "linux":
        return None
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)  # modes 0: asks, sets nothing
    if ctypes.CDLL(None, use_errno=True).adjtimex(buffer) < 0:
        return None
    _, _, _, largest, _, status = struct.unpack_from("illlli", buffer.raw)
    return bool(status & _UNSYNCHRONISED), largest


def limits() -> Finding:
    """Look at what this process may open and start."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    tasks = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    pids = _group_value("pids.max")
    room = min((n for n in (tasks, pids) if n is not None and n >= 0), default=None)
    text = f"{_limit(files)} open files, {_limit(room)} processes"
    if 0 <= files < _OPEN_FILES:
        return noted("limits", text, "large gangs and Ray run out of descriptors", f"ulimit -n {16 * _OPEN_FILES}")
    if room is not None and room < _OPEN_FILES:
        return noted(
            "limits", text, "Ray starts some hundred threads a node", f"ulimit -u {16 * _OPEN_FILES}, or pids.max"
        )
    if (
        os.path.isdir("/sys/class/infiniband")
        and 0 <= (locked := resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]) < 1 << 30
    ):
        return noted(
            "limits", f"{gigabytes(locked)} may be locked", "NCCL cannot use InfiniBand", "ulimit -l unlimited"
        )
    return ok("limits", text)


def _limit(number: int | None) -> str:
    return "unlimited" if number is None or number < 0 else f"{number:,}"


def _quota() -> float | None:
    """Return how many cores the control group grants in the mean, None for no limit."""
    text = _group_text("cpu.max").split()
    try:
        return int(text[0]) / int(text[1])
    except (IndexError, ValueError):
        return None


def _group_value(name: str) -> int | None:
    text = _group_text(name)
    return int(text) if text.isdigit() else None


def _group_text(name: str) -> str:
    """Return a file of this process's control group (version 2), empty where there is none."""
    try:
        groups = Path("/proc/self/cgroup").read_text("ascii").splitlines()
        own = next(line.partition("::")[2] for line in groups if line.startswith("0::"))
        return (Path("/sys/fs/cgroup") / own.strip("/") / name).read_text("ascii").strip()
    except (OSError, StopIteration):
        return ""
