"""WFBP: wait-free back-propagation; each gradient is sent as soon as it exists.

Helps: few large tensors, where backward hides them. Does not: many small tensors, each of which pays a start-up.
Lossless. Source: Zhang et al., Poseidon, USENIX ATC 2017 (recollection); the baseline of MG-WFBP (arXiv:1811.11141).
"""

from orch.plan import Plan
from orch.technique import Context, Knobs, Slot, Technique, fuse_each_wave


class Config(Knobs):
    """No knobs."""


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """One bucket a tensor: the plain plan, with buckets named as in every other plan."""
    return fuse_each_wave(plan, lambda plan, step, sends: range(1, len(sends) + 1))


technique = Technique(
    name="wfbp",
    slot=Slot.SCHEDULE,
    rewrite=rewrite,
    source="Poseidon, USENIX ATC 2017",
    lossless=True,
    config=Config,
    for_stages=True,
)
