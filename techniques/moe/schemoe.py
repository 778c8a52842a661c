"""ScheMoE: whatever packs, moves, unpacks and computes rows as tasks, and the order in which a rank computes its own.

Helps: rows that are packed to travel, or moved on two networks: the order lets what was computed leave at once. Does not:
rows that travel as they are by one network, where there is one order only (`pipemoe` makes it); layers not worth cutting.
Lossless; a codec beside it may not be.
Source: Shi et al., EuroSys 2024 (paper, theorem 1): first all packing out, then chunk after chunk what stands between its
arrival and its leaving, then all unpacking. Checked against every order for two and three chunks. The number of chunks is
outside the paper, which takes 2; here the best one is found as `pipemoe` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from orch.plan import COMPUTE, Crossing, Plan, Step, Task, crossings, recut
from orch.technique import Context, Knobs, Slot, Technique, choice, count
from techniques.moe._pipeline import Costs, degrees, laid


class Config(Knobs):
    """Degrees, and the order of computing."""

    degree: int | None = count(None, "chunks of a forward crossing (the paper: 2); none: chosen", least=1, most=64)
    degree_backward: int | None = count(None, "chunks of a backward crossing; none: chosen", least=1, most=64)
    most: int = count(8, "the largest degree that may be chosen", least=1, most=64)
    order: Literal["optsche", "tutel", "breadth", "serial"] = choice(
        "optsche",
        "optsche: a chunk is unpacked, computed and packed in one go; tutel: all are computed before any is packed again; "
        "breadth: all chunks of a task before any of the next; serial: one chunk after another",
    )


def orders(crossing: Crossing, degree: int, kind: str) -> list[tuple[int, int]]:
    """Return the order of a crossing's tasks, stage and chunk; each stream takes its own in this order."""
    if kind == "serial":
        return [(stage, chunk) for chunk in range(degree) for stage in range(len(crossing.stages))]
    return [(stage, chunk) for unit in _units(crossing, kind) for chunk in range(degree) for stage in unit]


def _units(crossing: Crossing, kind: str) -> Iterator[list[int]]:
    """Yield the stages that a chunk goes through in one go: neighbours that compute, or less of them."""
    unit: list[int] = []
    for place, task in enumerate(crossing.stages):
        before = crossing.stages[place - 1]
        apart = kind == "breadth" or (kind == "tutel" and before is crossing.expert)
        if unit and (apart or task.stream != COMPUTE or before.stream != COMPUTE):
            yield unit
            unit = []
        unit.append(place)
    yield unit


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Cut every crossing, and let its tasks run in the order."""
    return plan.each_step(lambda step: _scheduled(plan, step, context, config))


def _scheduled(plan: Plan, step: Step, context: Context, config: Config) -> Step:
    cuts: dict[str, Sequence[Task]] = {}
    blocks: dict[str, list[str]] = {}
    for crossing in crossings(step):
        asked = config.degree_backward if crossing.backward else config.degree
        degree = min(asked or _best(plan, context, crossing, config), crossing.positions)
        if degree == 1 or len(crossing.stages) == 1:
            continue
        chunks = crossing.cut(degree)
        cuts.update((task.name, cut) for task, cut in zip(crossing.stages, chunks, strict=True))
        names = [chunks[stage][chunk].name for stage, chunk in orders(crossing, degree, config.order)]
        blocks.update(dict.fromkeys(names, names))
    return laid(recut(step, cuts), blocks) if cuts else step


def _best(plan: Plan, context: Context, crossing: Crossing, config: Config) -> int:
    """Return the degree with the least makespan in this order; the smallest on ties."""
    if len(crossing.stages) == 1:
        return 1
    costs = Costs(plan, context, crossing)
    return min(
        range(1, min(crossing.positions, config.most) + 1),
        key=lambda degree: (costs.makespan(degree, orders(crossing, degree, config.order)), degree),
    )


technique = Technique(
    name="schemoe",
    slot=Slot.EXPERTS,
    rewrite=rewrite,
    source="10.1145/3627703.3650083",
    lossless=True,
    config=Config,
    settings=degrees,
    defaults=("pipe-a2a",),
)
