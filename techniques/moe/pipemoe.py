"""PipeMoE: cut a mixture-of-experts layer so that rows travel while experts compute; the degree comes from a cost model.

Helps: exchanges and experts of like length. Does not: one rank that holds all experts, one of the two much longer, rows
so few that start-ups dominate (then it leaves the layer whole). Lossless.
Source: Shi, Pan, Chu, Li, INFOCOM 2023 (abstract), and the authors' repository; that the cases of its solver are one
maximum, and to evaluate it at every degree in place of a solver, is ours: never worse, and right where alpha_d <= alpha_e.
"""

from __future__ import annotations

from orch.plan import Plan, cut_crossings
from orch.technique import Context, Knobs, Slot, Technique, count
from techniques.moe._pipeline import best_degree, degrees


class Config(Knobs):
    """Into how many chunks a layer is cut."""

    degree: int | None = count(None, "chunks of a forward crossing; none: the cost model's choice", least=1, most=64)
    degree_backward: int | None = count(
        None, "chunks of a backward crossing; none: the cost model's choice", least=1, most=64
    )
    most: int = count(8, "the largest degree that the cost model may choose (the repository's limit)", least=1, most=64)


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Cut every crossing: all dispatches before the first combine, chunk after chunk."""
    return cut_crossings(
        plan,
        lambda crossing: (
            (config.degree_backward if crossing.backward else config.degree)
            or best_degree(plan, context, crossing, config.most)
        ),
    )


technique = Technique(
    name="pipemoe",
    slot=Slot.EXPERTS,
    rewrite=rewrite,
    source="10.1109/INFOCOM53939.2023.10228874",
    lossless=True,
    config=Config,
    settings=degrees,
)
