"""SP-MoE: cut the tokens of a sample, through attention and mixtures alike, so that attention runs beside rows that travel.

Helps: language models whose exchanges are long beside what their experts compute; long sequences, down to a batch of one.
Does not: models whose tokens look at later ones (refused: BERT, expert choice, SoftMoE), chunks too short for efficient
products, exchanges that dense work cannot hide anyway. Lossless without capacity; with one, each chunk fills its own.
Source: Wang et al., INFOCOM 2025 (abstract: partition along the sequence over both kinds of layers, and a choice of both degrees).
Ours (design): the task graph, that the gate is cut as mixtures are, list schedules by four policies, and that a plan which
`pipemoe` makes faster is taken as `pipemoe` makes it, so this is never slower than that at the same degree of mixtures.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import Literal, Self

from pydantic import model_validator

from orch.plan import TOKENS, Expert, Plan, bounds, cut_crossings
from orch.technique import Context, Knobs, Slot, Technique, choice, count, flag
from techniques.moe._chain import Work, aligned, by_policy, divisors, layer_by_layer
from techniques.moe._pipeline import best_degree
from techniques.moe._planner import Cut, Planner, backward_fits, dense_degrees

# So many layers are looked at to choose degrees: all others repeat the middle one.
LOOKED_AT = 3


class Config(Knobs):
    """Degrees, bounds and who goes first."""

    degree_dense: int | None = count(None, "chunks of attention and what else is dense; none: chosen", least=1, most=64)
    degree: int | None = count(None, "chunks of mixtures; none: chosen", least=1, most=64)
    degree_dense_backward: int | None = count(
        None, "chunks of attention backward, of which each is some of forward's; none: chosen", least=1, most=64
    )
    degree_backward: int | None = count(
        None, "chunks of mixtures backward, of which some make each of forward's; none: chosen", least=1, most=64
    )
    most: int = count(8, "the largest degree that may be chosen: 1, 2, 4, 8 ...", least=1, most=64)
    smallest: int = count(
        128, "tokens that a chosen chunk of attention has at least: shorter products are inefficient", least=1
    )
    boundary: Literal["equal", "balanced"] = choice(
        "equal", "equal: chunks have equally many tokens; balanced: equally much to compute, so later ones have fewer"
    )
    policy: Literal["auto", "dense-out", "dense-back", "expert-out", "expert-back", "fifo"] = choice(
        "auto",
        "who goes first of attention and experts, and of rows out and back; fifo: the earlier layer, then the earlier chunk; "
        "auto: the best of these",
    )
    cross_layer: bool = flag(True, "attention of the next layer may begin before all rows of this one are back")

    @model_validator(mode="after")
    def _chunks_make_chunks(self) -> Self:
        return backward_fits(self)


def dense_bounds(units: int, degree: int, quadratic: float, boundary: str) -> tuple[int, ...]:
    """Return the bounds of `degree` chunks of attention over `units` tokens.

    Balanced, each has the same share of F(x) = (1 - s) x + s x^2 (x of 1, s the square share): sp-moe brief, section 4.2.
    """
    if boundary == "equal" or not quadratic:
        return bounds(units, degree)
    u, v = 1.0 - quadratic, quadratic
    cuts = [(-u + sqrt(u * u + 4 * v * number / degree)) / (2 * v) for number in range(degree + 1)]
    return tuple(sorted({0, units, *(round(units * cut) for cut in cuts)}))


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Walk the layers as chains, cut as costs say; or leave dense work whole, where that is faster."""
    if not plan.steps[0].of(Expert):
        return plan
    planner = Planner.of(plan, plan.steps[0], context, TOKENS)
    cut = _chosen(planner, context, config)
    orders = [_order(planner.work(way, cut), config) for way in (0, 1)]
    chain = planner.best_plan(TOKENS, cut, orders)
    if config.degree_dense is not None:
        return chain
    whole = cut_crossings(plan, lambda crossing: config.degree or best_degree(plan, context, crossing, config.most))
    return min((whole, chain), key=planner.costs.plan_s)


def _chosen(planner: Planner, context: Context, config: Config) -> Cut:
    """Return the cut with the best pair of degrees, of dense work and of mixtures, and the best backward beside it."""
    units = planner.chained.forward.units
    quadratic = max(stage.quadratic for stage in context.stages)
    few = [planner.of_first(number) for number in (LOOKED_AT, LOOKED_AT - 1)]
    scored = []
    for p, q in _degrees(units, config):
        dense = dense_bounds(units, p, quadratic, config.boundary)
        cut = Cut.alike(dense, aligned(dense, min(q, units)))
        scored.append((_estimated_s(planner, few, cut, config), p + q, cut))
    best: Cut = min(scored)[2]
    return few[0].backwards(best, config, lambda work: _order(work, config))


def _estimated_s(planner: Planner, few: list[Planner], cut: Cut, config: Config) -> float:
    """Return how long both chains take: those of the first layers, and for each further one what the last of them added."""
    more = max(0, len(planner.chained.forward.layers) - LOOKED_AT)
    total = 0.0
    for way in (0, 1):
        most, less = (work.makespan(_order(work, config)) for work in (one.work(way, cut) for one in few))
        total += most + more * (most - less)
    return total


def _degrees(units: int, config: Config) -> Iterator[tuple[int, int]]:
    """Yield the pairs of degrees to choose from, those of dense work first."""
    longest = max(1, units // config.smallest)
    found = [p for p in dense_degrees(config) if p <= longest or config.degree_dense is not None]
    for p in found or list(dense_degrees(config))[:1]:
        for q in divisors(config.most) if config.degree is None else [config.degree]:
            if (config.degree_backward or q) % q == 0:
                yield min(p, units), q


def _order(work: Work, config: Config) -> list[int]:
    order = by_policy(work, None if config.policy == "auto" else config.policy)
    return order if config.cross_layer else layer_by_layer(work, order)


technique = Technique(
    name="sp-moe",
    slot=Slot.EXPERTS,
    rewrite=rewrite,
    source="INFOCOM 2025 (abstract); steps are a design of ours",
    lossless=True,
    splits_capacity=True,
    config=Config,
)
