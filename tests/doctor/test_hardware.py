"""Cores, memory, devices, clock and limits: what is told of this machine, and what is told of poorer ones."""

from __future__ import annotations

import os
import resource
from types import SimpleNamespace

import pytest

from orch.doctor import hardware
from orch.doctor.finding import State
from orch.doctor.software import Loaded
from orch.gang import machine


def test_cores_are_those_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_group_text", lambda name: "")
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(machine, "num_cores", lambda: 4)
    assert hardware.cores().found.startswith("4 of 16, ")
    monkeypatch.setattr(machine, "num_cores", lambda: 1)
    assert "take turns" in hardware.cores().text()


def test_a_quota_of_the_control_group_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "num_cores", lambda: 8)
    monkeypatch.setattr(hardware, "_group_text", lambda name: "150000 100000" if name == "cpu.max" else "")
    found = hardware.cores()
    assert found.state is State.NOTE
    assert "held to 1.5 by the control group" in found.found
    monkeypatch.setattr(hardware, "_group_text", lambda name: "max 100000" if name == "cpu.max" else "")
    assert hardware.cores().state is State.OK


def test_memory_is_what_new_processes_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "free_bytes", lambda: 8 << 30)
    monkeypatch.setattr(hardware, "_group_text", lambda name: "")
    assert hardware.memory().found.startswith("8.0 GiB free of ")
    limits = {"memory.max": str(4 << 30), "memory.current": str(3 << 30)}
    monkeypatch.setattr(hardware, "_group_text", lambda name: limits.get(name, ""))
    found = hardware.memory()
    assert found.found == "1.0 GiB free of the 4.0 GiB of its control group"
    assert found.state is State.NOTE


def test_little_shared_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=16_384, f_frsize=4096))  # docker's 64 MiB
    assert (
        hardware.shared_memory().text()
        == "64 MiB free; Ray falls back to the disk; docker run --shm-size 1g, or free some of it"
    )


@pytest.mark.parametrize(
    ("present", "facts", "state", "text"),
    [
        (2, {"cuda": "13.0", "devices": ["H200", "H200"]}, State.OK, "2 x H200"),
        (2, {"cuda": None, "devices": []}, State.LACK, "2 GPUs, but torch is a CPU build"),
        (2, {"cuda": "13.0", "devices": []}, State.LACK, "2 GPUs, but torch does not see them"),
        (0, {"cuda": None, "devices": []}, State.OK, "no GPU"),
    ],
)
def test_gpus_are_those_torch_can_use(
    monkeypatch: pytest.MonkeyPatch, present: int, facts: dict[str, object], state: State, text: str
) -> None:
    monkeypatch.setattr(machine, "num_gpus", lambda: present)
    found = hardware.devices(Loaded("torch", facts))
    assert found.state is state
    assert found.found.startswith(text)


@pytest.mark.parametrize(
    ("status", "state", "text"),
    [
        ((True, 16_000_000), State.NOTE, "not kept by a time server"),
        ((False, 4000), State.OK, "within 4 ms"),
        (None, State.OK, "source"),
    ],
)
def test_the_clock_says_whether_it_is_kept(monkeypatch: pytest.MonkeyPatch, status, state: State, text: str) -> None:
    monkeypatch.setattr(hardware, "_time_status", lambda: status)
    found = hardware.clock()
    assert found.state is state
    assert text in found.found


def test_the_kernel_tells_its_clock_apart() -> None:
    unsynchronised, largest_us = hardware._time_status() or (True, 0)
    assert unsynchronised or largest_us < 16_000_000  # the kernel's own bound for a clock that is kept


def test_few_descriptors_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_group_text", lambda name: "")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024 if which == resource.RLIMIT_NOFILE else 1 << 17, -1))
    assert hardware.limits().text() == (
        "1,024 open files, 131,072 processes; large gangs and Ray run out of descriptors; ulimit -n 65536"
    )
    monkeypatch.setattr(resource, "getrlimit", lambda which: (-1, -1))
    assert hardware.limits().found == "unlimited open files, unlimited processes"
    monkeypatch.setattr(hardware, "_group_text", lambda name: "512" if name == "pids.max" else "")
    assert hardware.limits().state is State.NOTE
