"""Single bucket: all gradients in one all-reduce after backward (SyncEASGD). Lossless.

Helps: start-up dear, backward short. Does not: large models on slow links, where nothing hides the one big all-reduce.
Source: the single-layer baseline of MG-WFBP (arXiv:1811.11141).
"""

from orch.plan import Plan
from orch.technique import Context, Knobs, Slot, Technique, fuse_each_wave


class Config(Knobs):
    """No knobs."""


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """One bucket a wave."""
    return fuse_each_wave(plan, lambda plan, step, sends: [len(sends)])


technique = Technique(
    name="single-bucket",
    slot=Slot.SCHEDULE,
    rewrite=rewrite,
    source="arXiv:1811.11141",
    lossless=True,
    config=Config,
    for_stages=True,
)
