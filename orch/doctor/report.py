"""Look at everything, side by side: the slowest look (loading torch) sets the time."""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from orch.doctor import disks, hardware, network, software, versions
from orch.doctor.finding import Finding, Way
from orch.doctor.ways import ways


@dataclass(frozen=True, slots=True)
class Report:
    """What this machine can do: `ways` of reaching workers, and what was found on it."""

    machine: str
    ways: list[Way]
    findings: list[Finding]


def examine(runs: Path) -> Report:
    """Look at this machine; starts no worker, writes nothing. `runs`: the directory of runs."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        loading = pool.submit(software.load_torch), pool.submit(software.load_ray)
        trying = pool.submit(network.try_shaping)
        looks: list[Callable[[], Finding]] = [
            software.python, versions.packages, hardware.cores, hardware.memory, hardware.shared_memory, hardware.limits,
            hardware.clock, lambda: disks.runs_disk(runs), disks.temporary_disk, network.network, network.ports,
            lambda: software.store(runs), software.git,
        ]  # fmt: skip
        findings = [look() for look in looks]
        torch, ray, shaping = loading[0].result(), loading[1].result(), trying.result()
    libraries = [software.torch(torch), software.ray(ray), hardware.devices(torch)]
    findings = [findings[0], *libraries, *findings[1:], network.shaping(shaping)]
    system = f"{socket.gethostname()}, {platform.system()} {platform.release()} {platform.machine()}"
    return Report(system, ways(torch, ray, shaping), findings)
