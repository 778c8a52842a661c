"""Naive: exchange, compute, exchange back, nothing beside it; gradients are sent after backward. Lossless.

Helps: never; it is what other schedules of mixture-of-experts layers are measured against.
Source: DeepSpeed-MoE (Rajbhandari et al., ICML 2022, recollection; code seen): gate, dispatch, experts, combine in one
chain, all-reduce of gradients at the end of backward.
"""

from orch.plan import Plan
from orch.technique import Context, Knobs, Slot, Technique
from techniques.schedules.s_sgd import held_back


class Config(Knobs):
    """No knobs."""


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Hold gradients back until the last backward task has ended; the layers are serial as they were drawn."""
    return plan.each_step(held_back)


technique = Technique(
    name="naive-moe",
    slot=Slot.EXPERTS,
    rewrite=rewrite,
    source="arXiv:2201.05596",
    lossless=True,
    config=Config,
)
