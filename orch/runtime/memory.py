"""How much memory a stack takes on a worker, measured: resident memory of the process, or what torch allocates on a GPU."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc(5): forget the largest resident size


class Rise:
    """The rise of memory from the moment it is made. Freed memory is given back first, so that it is not used again
    unseen: that costs time, which is no time to measure steps in.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device if device.type == "cuda" else None
        self._begin: int | None = None
        if self._cuda is not None:
            torch.cuda.reset_peak_memory_stats(self._cuda)
            self._begin = torch.cuda.memory_allocated(self._cuda)
            return
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        # Where the kernel keeps no such figures nothing is known.
        with suppress(OSError):
            _CLEAR.write_text(_RESET_PEAK, encoding="ascii")
            self._begin = _status("VmRSS")

    def peak_bytes(self, model: nn.Module) -> int | None:
        """Return the most that was held beyond the beginning, with the parameters of `model`, which were there before;
        None where this system does not say.
        """
        if self._begin is None:
            return None
        most = _status("VmHWM") if self._cuda is None else torch.cuda.max_memory_allocated(self._cuda)
        own = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        return max(0, most - self._begin) + own


def _status(field: str) -> int:
    """Return a size that the kernel tells about this process, in bytes. OSError: it tells none."""
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} says nothing of {field}")
