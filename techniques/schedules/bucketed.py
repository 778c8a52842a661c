"""Bucketed: gradients share an all-reduce until a bucket is full; what torch's DDP does, on our own runtime. Lossless.

Helps: many small tensors. Does not: a cap that fits neither start-up nor backward; mg-wfbp finds the grouping itself.
Source: Li et al., PyTorch Distributed, VLDB 2020 (arXiv:2006.15704). The cap counts bytes of GRADIENT, so that
compressed payloads keep the number of buckets: the scaled thresholds of ACP-SGD (Zhang et al., ICDCS 2023).
"""

from collections.abc import Sequence

from orch.plan import Plan
from orch.technique import Context, Knobs, Slot, Technique, fuse_each_wave, quantity
from orch.units import Bytes


class Config(Knobs):
    """When a bucket is full."""

    cap: Bytes = quantity("25MiB", "a bucket closes once it serves at least this much gradient", least=0.0)
    first_bucket: Bytes = quantity("1MiB", "the same for the first bucket, which is ready first", least=0.0)


def fill(nbytes: Sequence[float], first: float, cap: float) -> list[int]:
    """Return bucket ends: a tensor joins, then the bucket closes if it holds at least `first` (later `cap`) bytes.

    So a bucket may exceed its cap by one tensor, which is never split, and a cap of 0 gives one bucket a tensor.
    """
    ends: list[int] = []
    held = 0.0
    for index, size in enumerate(nbytes):
        held += size
        if held >= (cap if ends else first):
            ends.append(index + 1)
            held = 0.0
    return ends if ends and ends[-1] == len(nbytes) else [*ends, len(nbytes)]


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Fill buckets in launch order, wave by wave."""
    return fuse_each_wave(
        plan,
        lambda plan, step, sends: fill([context.gradient_bytes(s) for s in sends], config.first_bucket, config.cap),
    )


technique = Technique(
    name="bucketed",
    slot=Slot.SCHEDULE,
    rewrite=rewrite,
    source="arXiv:2006.15704",
    lossless=True,
    config=Config,
    for_stages=True,
)
