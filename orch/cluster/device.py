"""A device: how long it computes and moves bytes in its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from orch.cluster.basis import COMPUTE_BAND, Basis
from orch.cluster.curves import Number
from orch.errors import OrchError


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a cluster. Rates are what a training step reaches where the file says so, else the data sheet's."""

    kind: Literal["gpu", "cpu"]
    name: str
    rate_flops: Mapping[str, Number] = field(default_factory=dict, hash=False)
    memory_bytes_per_s: Number | None = None
    memory_bytes: float | None = None
    basis: Basis = field(default_factory=lambda: Basis("nameplate"))
    band: float | None = None
    owner: str = ""
    # Seconds that a matrix product takes however small it is; 0 where nobody measured it.
    launch_s: Number = 0.0

    def compute_s(self, flops: Number = 0.0, moved_bytes: Number = 0.0, dtype: str = "fp32") -> Number:
        """Return seconds for `flops` floating-point operations (2 a multiply-add) that move `moved_bytes` through
        memory.

        The two add up: `flops / rate + bytes / bandwidth` (a derived rule: a roofline's
        maximum would call element-wise layers free). Raises OrchError where the cluster file
        has no rate of `dtype` or no memory bandwidth and one is needed.
        """
        rate, bandwidth = self.rate_flops.get(dtype), self.memory_bytes_per_s
        if rate is not None and bandwidth is not None:
            return flops / rate + moved_bytes / bandwidth
        # Zero work needs no rate: an operation that only moves bytes can be costed on a device without one.
        computing = 0.0 if isinstance(flops, (int, float)) and flops == 0 else flops / self._rate(dtype)
        moving = 0.0 if isinstance(moved_bytes, (int, float)) and moved_bytes == 0 else moved_bytes / self._bandwidth()
        return computing + moving

    def relative_band(self) -> float:
        """Return the relative half width of compute times: the file's, else the default of the kind."""
        return COMPUTE_BAND[self.basis.kind] if self.band is None else self.band

    def scaled(self, compute: Number) -> Device:
        """Return this device with every computation taking `compute` times as long."""
        rates = {dtype: rate / compute for dtype, rate in self.rate_flops.items()}
        moved = None if self.memory_bytes_per_s is None else self.memory_bytes_per_s / compute
        return replace(self, rate_flops=rates, memory_bytes_per_s=moved, launch_s=self.launch_s * compute)

    def _rate(self, dtype: str) -> Number:
        if dtype not in self.rate_flops:
            known = f"it has {', '.join(self.rate_flops)}" if self.rate_flops else "it has none"
            hint = f"add device.rate: {{{dtype}: 10TFLOP/s}} with its source"
            raise OrchError(
                f"cluster {self.owner}: device.rate of {dtype} is not described ({known})", code="E302", hint=hint
            )
        return self.rate_flops[dtype]

    def _bandwidth(self) -> Number:
        if self.memory_bytes_per_s is None:
            hint = "add device.memory_bandwidth: 300GB/s with its source"
            raise OrchError(f"cluster {self.owner}: device.memory_bandwidth is not described", code="E302", hint=hint)
        return self.memory_bytes_per_s
