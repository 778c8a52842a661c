"""Lina: PipeMoE's chunks, and gradients in slices of one size wherever rows leave the network idle; rows come first.

Helps: gradients that fit where experts and dense layers compute. Does not: slices longer than the holes they start in, which
then hold rows up (`fsmoe` cuts them to fit); one rank that holds all experts. Lossless.
Source: Li et al., ATC 2023, as FSMoE's paper (section 6) runs it beside PipeMoE: slices of 30 MB, all-to-alls before all-reduces.
There a queue decides at run time; here the plan does: a slice stands in a hole while that is not filled, so the last one
of a hole may reach beyond it, as a slice under way is not stopped (ours).
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from orch.plan import Plan, Task
from orch.technique import Context, Knobs, Slot, Technique, choice, count, quantity
from orch.units import Bytes
from techniques.moe._holes import Hole, Pass, Piece, Queue
from techniques.moe._pipeline import one_network


class Config(Knobs):
    """Degrees, and how large slices are."""

    degree: int | None = count(None, "chunks of every forward crossing; none: chosen", least=1, most=64)
    degree_backward: int | None = count(None, "chunks of every backward crossing; none: chosen", least=1, most=64)
    most: int = count(8, "the largest degree that may be chosen", least=1, most=64)
    slice: Bytes = quantity("30MB", "gradients that travel at once, at most", least=1.0)
    networks: Literal["both", "one"] = choice(
        "both", "one: what travels inside a node waits for what travels between nodes, as in systems before FSMoE"
    )


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Cut every crossing, and move the dense gradients into its holes, slice by slice."""
    plan = one_network(plan) if config.networks == "one" else plan
    share_out = partial(_share_out, size=config.slice)
    return plan.each_step(lambda step: Pass(plan, step, context, config, share_out).run())


def _share_out(made: Pass, holes: list[Hole], sends: list[Task], size: float) -> list[Piece]:
    """Give each hole slices of what exists when it opens until it is filled; return what is left. Degrees stay PipeMoE's."""
    cost = made.context.collective_s(made.plan, sends[0])
    queue = Queue(sends)
    for hole in holes:
        idle_s = hole.hidden_s
        while idle_s > 0.0 and (load := list(queue.take(size, may=partial(made.exists, before=hole.start)))):
            hole.loads.append(load)
            idle_s -= float(cost(sum(piece.nbytes for piece in load)))
    return list(queue.take(float("inf")))


technique = Technique(
    name="lina",
    slot=Slot.EXPERTS,
    rewrite=rewrite,
    source="USENIX ATC 2023; arXiv:2210.17223",
    lossless=True,
    config=Config,
)
