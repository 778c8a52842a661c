"""This machine: what it can hold, and how its GPUs are shared out."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from orch.errors import OrchError
from orch.gang.worker import Spec

# What a forked worker touches at the least, before any model (measured: 45 to 60 MiB with torch shared by all).
WORKER_BYTES = 64 << 20


def identity() -> str:
    """Return what tells machines, and containers with a file system of their own, apart."""
    boot = ""
    if os.path.exists("/proc/sys/kernel/random/boot_id"):
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
    root = os.stat("/")
    return f"{socket.gethostname()}/{boot}/{root.st_dev}/{root.st_ino}"


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_gpus() -> int:
    """Return how many GPUs this process may use, without loading a driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name and name != "-1"])
    try:
        return sum(re.fullmatch(r"nvidia\d+", name) is not None for name in os.listdir("/dev"))
    except OSError:
        return 0


def free_bytes() -> int | None:
    """Return the memory that new processes could use, None where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return None


def refuse_or_note(size: int, device: str) -> tuple[str, ...]:
    """Return what the user may want to know of `size` workers here. OrchError: they can never fit."""
    if device == "cuda":
        if (gpus := num_gpus()) < size:
            text = f"{size} workers want {size} GPUs; this machine has {gpus}"
            raise OrchError(text, code="E712", hint="fewer workers, device cpu, or --on ADDRESS of a larger cluster")
        return ()
    free = free_bytes()
    if free is not None and size * WORKER_BYTES > free:
        wanted = f"{size} workers want at least {size * WORKER_BYTES / 1e9:.0f} GB of memory"
        text = f"{wanted}; this machine has {free / 1e9:.0f} GB free"
        raise OrchError(
            text, code="E712", hint="fewer workers, or --on ADDRESS of a larger cluster; orch plan needs none"
        )
    cores = num_cores()
    return (f"{size} workers share {cores} core{'s' * (cores != 1)}",) if size > cores else ()


def share_out(specs: Sequence[Spec], visible: str | None) -> list[Spec]:
    """Share this machine's GPUs (those in `visible`, as CUDA_VISIBLE_DEVICES lists them) and cores among its workers."""
    return split_cores(split_gpus(specs, visible))


def split_cores(specs: Sequence[Spec]) -> list[Spec]:
    """Bind the CPU workers of a machine to their cores where they outnumber them evenly.

    Left to itself the kernel keeps three of four workers on one of two cores for steps at a time: the same step took
    31 to 58 ms, bound 32 to 35 ms. Uneven numbers are left to it: bound, the core with one worker more would set the pace.
    """
    return [
        replace(spec, cores=core_of(index, len(specs))) if spec.device == "cpu" and not spec.cores else spec
        for index, spec in enumerate(specs)
    ]


def core_of(index: int, count: int) -> tuple[int, ...]:
    """Return the core of worker `index` of `count` on this machine; none where workers are not bound."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    bound = cores and count > len(cores) and count % len(cores) == 0
    return (cores[index % len(cores)],) if bound else ()


@contextmanager
def part_of_cores(part: int, whole: int) -> Iterator[None]:
    """Keep this thread, and all it starts, to `part` of `whole` parts of its cores, where those are whole cores.

    For a small world that is to show what a larger one would do: a worker then has as much of a core in either.
    """
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    cores, rest = divmod(len(before) * part, whole)
    if not cores or rest or cores == len(before):
        yield
        return
    os.sched_setaffinity(0, sorted(before)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def split_gpus(specs: Sequence[Spec], visible: str | None) -> list[Spec]:
    """Give each GPU worker of a machine its own device of those in `visible` (as CUDA_VISIBLE_DEVICES lists them)."""
    names = [name for name in (visible or "").split(",") if name]
    given = []
    for index, spec in enumerate(specs):
        if spec.device == "cpu":
            given.append(spec)
        else:
            env = {**spec.env, "CUDA_VISIBLE_DEVICES": names[index] if index < len(names) else str(index)}
            given.append(replace(spec, device="cuda:0", env=env))
    return given
