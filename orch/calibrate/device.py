"""What a worker's device reaches while all workers compute: floating-point operations and bytes a second."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orch.gang import Gang

SIDE, COPIED_BYTES, TIMES = 256, 1 << 24, 20


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Medians over ranks: of a product of 256 x 256 matrices in fp32, and of a copy of 16 MiB (read and written)."""

    flops_per_s: float
    bytes_per_s: float


def measure_device(gang: Gang) -> DeviceRates:
    """Return the rates of the gang's devices, all ranks at once."""
    ranks = gang.call(rates)
    return DeviceRates(median(flops for flops, _ in ranks), median(moved for _, moved in ranks))


def rates(worker: Any) -> tuple[float, float]:
    """Return this rank's FLOP/s and bytes/s."""
    import torch

    device = torch.device(worker.device)
    left, right = torch.rand(SIDE, SIDE, device=device), torch.rand(SIDE, SIDE, device=device)
    source = torch.zeros(COPIED_BYTES // 4, device=device)
    target = torch.empty_like(source)

    def timed(work: Any) -> float:
        work()
        begin = perf_counter()
        for _ in range(TIMES):
            work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (perf_counter() - begin) / TIMES

    return 2.0 * SIDE**3 / timed(lambda: torch.mm(left, right)), 2.0 * COPIED_BYTES / timed(
        lambda: target.copy_(source)
    )
