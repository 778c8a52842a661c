"""When something happened: on the host's clock, or, on an accelerator, as an event that is read once the device got
there.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Makes stamps, and turns them into seconds of one monotonic clock, once they are asked for."""

    def now(self) -> Any:
        """Return a stamp of this moment of the compute stream."""

    def seconds(self, stamp: Any) -> float:
        """Return the time of a stamp; waits for the device to reach it."""


class HostClock:
    """The thread that trains is the compute stream: its own clock is the right one."""

    now = staticmethod(perf_counter)

    def seconds(self, stamp: Any) -> float:
        """Return the stamp."""
        return float(stamp)


class CudaClock:
    """The device runs behind the host: a stamp is an event on the current CUDA stream."""

    def __init__(self) -> None:
        self._zero = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._zero.record()
        self._zero.synchronize()
        self._zero_s = perf_counter()

    def now(self) -> Any:
        """Return an event that the current stream will pass."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, stamp: Any) -> float:
        """Return when the device passed the event, on the host's clock (a float is already a time)."""
        if isinstance(stamp, float):
            return stamp
        stamp.synchronize()
        return self._zero_s + float(self._zero.elapsed_time(stamp)) / 1e3


def clock_of(device: torch.device) -> Clock:
    """Return the clock for work on `device`."""
    return CudaClock() if device.type == "cuda" else HostClock()


def clock_name() -> str:
    """Return what tells the monotonic clock of this process from those of other machines; "" where nothing does."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    return ""
