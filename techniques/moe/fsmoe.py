"""FSMoE: three streams at once, degrees of their own forward and backward, and gradients cut to fit the holes.

Helps: exchanges between nodes, gathers inside them and experts of like length, and gradients that still fit between
dispatch and combine. Does not: one node, or one stream that fills the step alone. Lossless.
Source: Pan et al., ASPLOS 2025 (arXiv:2501.10714). Its four cases are one maximum (derived: exact where gather and scatter
take equally long), evaluated here stage by stage; gradients that fit no hole are placed part by part where they delay
least, in place of differential evolution: never worse than sending them at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from orch.plan import Plan, Task
from orch.technique import Context, Knobs, Slot, Technique, choice, count, quantity
from orch.units import Bytes
from techniques.moe._holes import Hole, Pass, Piece, Queue
from techniques.moe._pipeline import one_network

PARTS = 16


class Config(Knobs):
    """Degrees, and what becomes of gradients."""

    degree: int | None = count(None, "chunks of every forward crossing; none: chosen", least=1, most=64)
    degree_backward: int | None = count(None, "chunks of every backward crossing; none: chosen", least=1, most=64)
    most: int = count(8, "the largest degree that may be chosen (the paper's limit)", least=1, most=64)
    gradients: Literal["adaptive", "as-scheduled"] = choice(
        "adaptive",
        "adaptive: cut to fit the holes of backward crossings; as-scheduled: as the stack's schedule left them",
    )
    networks: Literal["both", "one"] = choice(
        "both", "one: what travels inside a node waits for what travels between nodes (the paper's No-IIO)"
    )
    smallest: Bytes = quantity("256KiB", "no part of the gradients is smaller, unless it is the last", least=1.0)


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Cut every crossing at its best degree, and move the dense gradients into the holes."""
    plan = one_network(plan) if config.networks == "one" else plan
    share_out = partial(_share_out, smallest=config.smallest) if config.gradients == "adaptive" else None
    return plan.each_step(lambda step: Pass(plan, step, context, config, share_out).run())


def _share_out(made: Pass, holes: list[Hole], sends: list[Task], smallest: float) -> list[Piece]:
    """Give each hole the gradients it can hide (step 1), then what delays it least (step 2); return what is left."""
    cost = made.context.collective_s(made.plan, sends[0])
    queue = Queue(sends)
    ready = [sum(made.ready(piece) < hole.start for piece in queue.pieces) for hole in holes]
    sizes = [sum(piece.nbytes for piece in queue.pieces[:number]) for number in ready]
    planned: list[float] = []
    sent = 0.0
    for hole, available in zip(holes, sizes, strict=True):
        size = min(available - sent, _most_bytes(cost, hole.hidden_s))
        planned.append(size if size >= smallest else 0.0)
        sent += planned[-1]
    _spread_rest(holes, planned, sizes, cost, smallest)
    for hole, size in zip(holes, planned, strict=True):
        if load := list(queue.take(size, smallest / 2, partial(made.exists, before=hole.start))):
            hole.loads.append(load)
            hole.given_s = float(cost(sum(piece.nbytes for piece in load)))
    return list(queue.take(float("inf")))


def _spread_rest(
    holes: list[Hole], planned: list[float], sizes: Sequence[float], cost: object, smallest: float
) -> None:
    """Place what fits no hole, part by part, where it delays a crossing less than it would take at the end."""
    assert callable(cost)
    rest = sizes[-1] - sum(planned)
    part = max(rest / PARTS, smallest)
    while rest >= smallest:
        part = min(part, rest)
        best, least = None, float(cost(part)) * (1.0 - 1e-9)
        for number, hole in enumerate(holes):
            if any(sum(planned[: later + 1]) + part > sizes[later] for later in range(number, len(holes))):
                continue  # not produced yet
            before, after = (float(cost(size)) if size else 0.0 for size in (planned[number], planned[number] + part))
            more = hole.f(after) - hole.f(before)
            if more < least:
                best, least = number, more
        if best is None:
            return
        planned[best] += part
        rest -= part


def _most_bytes(cost: object, limit_s: float) -> float:
    """Return the most bytes whose collective takes at most `limit_s`; 0 where the start-up alone takes longer."""
    assert callable(cost)
    if limit_s <= float(cost(1.0)):
        return 0.0
    high = 1.0
    while float(cost(2.0 * high)) <= limit_s and high < 1e15:
        high *= 2.0
    low, high = high, 2.0 * high
    # Costs are nearly a line: what a chord says is a narrower bracket, where it is one.
    begin, end = float(cost(low)), float(cost(high))
    if end > begin:
        middle = low + (high - low) * (limit_s - begin) / (end - begin)
        below, above = middle * (1.0 - 1e-13), middle * (1.0 + 1e-13)
        if low <= below and above <= high and float(cost(below)) <= limit_s < float(cost(above)):
            low, high = below, above
    while low < (middle := 0.5 * (low + high)) < high:
        low, high = (middle, high) if float(cost(middle)) <= limit_s else (low, middle)
    return low


technique = Technique(
    name="fsmoe",
    slot=Slot.EXPERTS,
    rewrite=rewrite,
    source="arXiv:2501.10714",
    lossless=True,
    config=Config,
)
