"""Mast: cut the batch, through attention and mixtures alike, and search the order of all tasks of a layer.

Helps: attention and exchanges of like length, and several samples a worker. Does not: one sample a worker (nothing to cut), one
stream that fills a layer alone (then every order is as good). Lossless without capacity; with one, each chunk fills its own.
Source: IEEE ICDCS 2025 (abstract), and the owner's repository: operations, degrees d1 and d2, the default order, streams that
take their tasks as they stand. Ours: simulated annealing from the best of the default order and four list schedules in place of
CMA-ES over decision vectors (never worse than the default); backward has an order of its own, and may have other degrees. What
ranks that share samples tell one another (its operations 1 and 7) travels on a network of its own, so that a pair of exchanges is
under way at once wherever the order has it so (codes 37, 73, 57, 75); `networks: one` is its released search, in which none is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, Self

from pydantic import model_validator

from orch.plan import SAMPLES, Expert, Plan, bounds
from orch.technique import Context, Knobs, Slot, Technique, choice, count
from techniques.moe._chain import Key, Work, divisors
from techniques.moe._pipeline import one_network
from techniques.moe._planner import Cut, Planner, backward_fits, dense_degrees
from techniques.moe._search import default_order, searched

# Of the pairs of degrees so many, the best in the default order, get list schedules; and so many of these are searched.
TRIED = (4, 2)


class Config(Knobs):
    """Degrees, and how the order is found."""

    degree_dense: int | None = count(
        None, "d1, chunks of attention and what else is dense; none: chosen", least=1, most=64
    )
    degree: int | None = count(None, "d2, chunks of mixtures; none: chosen", least=1, most=64)
    degree_dense_backward: int | None = count(
        None, "chunks of attention backward, of which each is some of forward's; none: chosen", least=1, most=64
    )
    degree_backward: int | None = count(
        None, "chunks of mixtures backward, of which some make each of forward's; none: chosen", least=1, most=64
    )
    degrees: Literal["apart", "alike"] = choice(
        "apart",
        "whether degrees may differ, of both parts and both ways, where they are chosen (the repository's search: equal ones)",
    )
    most: int = count(8, "the largest degree that may be chosen: 1, 2, 4, 8 ...", least=1, most=64)
    order: Literal["searched", "default"] = choice(
        "searched", "default: every task of all chunks before the next task; searched: the best of what a search finds"
    )
    trials: int = count(
        300, "moves that the search tries, for each of two pairs of degrees and each way (repository: 5000)"
    )
    layers: int = count(
        1, "so many layers are searched together; each such group has an order of its own", least=1, most=3
    )
    seed: int = count(0, "of the search: equal seeds find equal orders, on every rank and machine")
    networks: Literal["both", "one"] = choice(
        "both", "one: what ranks that share samples tell one another waits for rows, and rows wait for it"
    )

    @model_validator(mode="after")
    def _chunks_make_chunks(self) -> Self:
        return backward_fits(self)


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Walk the layers as chains, in the order found."""
    if not plan.steps[0].of(Expert):
        return plan
    plan = one_network(plan) if config.networks == "one" else plan
    planner = Planner.of(plan, plan.steps[0], context, SAMPLES)
    cut = _chosen(planner, config)
    works = [planner.work(way, cut) for way in (0, 1)]
    orders = [[default_order(work) for work in works]]
    if config.order == "searched" and (found := [_whole_order(work, config) for work in works]) != orders[0]:
        orders.append(found)
    plans = [planner.best_plan(SAMPLES, cut, order) for order in orders]
    return plans[0] if len(plans) == 1 else min(plans, key=planner.costs.plan_s)


def _chosen(planner: Planner, config: Config) -> Cut:
    """Return the cut with the best pair of degrees, of dense work and of mixtures, and the best backward beside it."""
    units = planner.chained.forward.units
    first = planner.of_first(config.layers)
    pairs = sorted(
        dict.fromkeys((min(units, p), min(units, q)) for p, q in _degrees(config)), key=lambda pair: (sum(pair), pair)
    )

    def cut(pair: tuple[int, int]) -> Cut:
        return Cut.alike(bounds(units, pair[0]), bounds(units, pair[1]))

    def taken_s(pair: tuple[int, int], find: Callable[[Work], list[int]]) -> float:
        return sum(work.makespan(find(work)) for work in (first.work(way, cut(pair)) for way in (0, 1)))

    pairs = _least(pairs, TRIED[0] if config.order == "searched" else 1, lambda pair: taken_s(pair, default_order))
    if config.order == "searched":
        pairs = _least(pairs, TRIED[1], lambda pair: taken_s(pair, lambda work: searched(work, 0, config.seed)))
        pairs = _least(pairs, 1, lambda pair: taken_s(pair, lambda work: searched(work, config.trials, config.seed)))
    if config.degrees == "alike" and config.degree_backward is None and config.degree_dense_backward is None:
        return cut(pairs[0])
    return first.backwards(cut(pairs[0]), config, default_order)


def _least(
    pairs: list[tuple[int, int]], most: int, seconds: Callable[[tuple[int, int]], float]
) -> list[tuple[int, int]]:
    """Return the `most` pairs that take least, the first on ties; all as they are where there are no more."""
    return pairs if len(pairs) <= most else sorted(pairs, key=seconds)[:most]


def _degrees(config: Config) -> Iterator[tuple[int, int]]:
    """Yield the pairs of degrees to choose from, those of dense work first."""
    for p in dense_degrees(config):
        for q in divisors(config.most) if config.degree is None else [config.degree]:
            differ = config.degrees == "apart" or None not in (config.degree_dense, config.degree)
            if (p == q or differ) and (config.degree_backward or q) % q == 0:
                yield p, q


def _whole_order(work: Work, config: Config) -> list[int]:
    """Return the order of all layers that is found: groups of layers one after another, each in its own order, which alike ones
    share; or the list schedule of all, where that ends sooner.
    """
    found: list[int] = []
    known: dict[Work, list[int]] = {}
    last = max(layer for layer, _, _ in work.keys)
    for first in range(0, last + 1, config.layers):
        part, numbers = _layers_of(work, range(first, first + config.layers))
        if part not in known:
            known[part] = searched(part, config.trials, config.seed)
        found += [numbers[number] for number in known[part]]
    return found if last < config.layers else min((found, searched(work, 0, config.seed)), key=work.makespan)


def _layers_of(work: Work, layers: range) -> tuple[Work, list[int]]:
    """Return some layers of a work by themselves, counted from 0, and the numbers that their tasks have in it."""
    numbers = [number for number, (layer, _, _) in enumerate(work.keys) if layer in layers]
    places = {number: place for place, number in enumerate(numbers)}

    def key(number: int) -> Key:
        layer, place, chunk = work.keys[number]
        return layer - layers.start, place, chunk

    return Work(
        tuple(key(number) for number in numbers),
        tuple(work.kinds[number] for number in numbers),
        tuple(work.seconds[number] for number in numbers),
        tuple(work.streams[number] for number in numbers),
        tuple(tuple(places[other] for other in work.before[number] if other in places) for number in numbers),
        work.backward,
    ), numbers


technique = Technique(
    name="mast",
    slot=Slot.EXPERTS,
    rewrite=rewrite,
    source="IEEE ICDCS 2025, document 11183775 (abstract); the owner's repository",
    lossless=True,
    splits_capacity=True,
    config=Config,
)
