"""Tutel: one of a few degrees for a layer, forward and backward alike, found by trying them.

Helps: as PipeMoE does, where one of its few degrees is near the best. Does not: forward and backward that want different
ones, start-ups that no degree above one is worth. Lossless.
Source: Hwang et al., MLSys 2023 (arXiv:2206.03382; text and code seen): adaptive pipelining; what it times on the machine
while it trains is computed here from the same costs as everything else. Larger degrees than 8 are judged useless there.
"""

from __future__ import annotations

from orch.plan import Crossing, Plan, crossings, cut_crossings
from orch.technique import Context, Knobs, Slot, Technique, count
from techniques.moe._pipeline import crossing_s

DEGREES = (1, 2, 4, 8)


class Config(Knobs):
    """The overlap degree."""

    degree: int | None = count(None, "chunks of every crossing; none: the best of 1, 2, 4 and 8", least=1, most=32)


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Cut every crossing of a layer at its degree."""
    if config.degree is not None:
        return cut_crossings(plan, lambda crossing: config.degree or 1)
    both: dict[str, list[Crossing]] = {}
    for step in plan.steps[:1]:
        for crossing in crossings(step):
            both.setdefault(crossing.module, []).append(crossing)
    best = {module: _best(plan, context, found) for module, found in both.items()}
    return cut_crossings(plan, lambda crossing: best[crossing.module])


def _best(plan: Plan, context: Context, found: list[Crossing]) -> int:
    if any(len(crossing.stages) == 1 for crossing in found):
        return 1
    degrees = [degree for degree in DEGREES if degree <= found[0].positions]
    return min(degrees, key=lambda degree: (sum(crossing_s(plan, context, one, degree) for one in found), degree))


technique = Technique(
    name="tutel",
    slot=Slot.EXPERTS,
    rewrite=rewrite,
    source="arXiv:2206.03382",
    lossless=True,
    config=Config,
)
