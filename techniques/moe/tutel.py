"""Tutel: one of a few degrees for a layer, forward and backward alike, found by trying them.

Helps: as PipeMoE does, where one of its few degrees is near the best. Does not: forward and backward that want different
ones, start-ups that no degree above one is worth. Lossless.
Source: Hwang et al., MLSys 2023 (arXiv:2206.03382; text and code seen): adaptive pipelining; what it times on the machine
while it trains is computed here from the same costs as everything else. Larger degrees than 8 are judged useless there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from orch.plan import COUNTS, RELAYED, Crossing, Plan, Rows, RowSizes, Step, Task, crossings, cut_crossings
from orch.technique import Context, Knobs, Slot, Technique, choice, count
from techniques.moe._pipeline import Costs, laid, one_network

DEGREES = (1, 2, 4, 8)


class Config(Knobs):
    """The overlap degree."""

    degree: int | None = count(None, "chunks of every crossing; none: the best of 1, 2, 4 and 8", least=1, most=32)
    networks: Literal["both", "one"] = choice(
        "both", "one: what travels inside a node waits for what travels between nodes, as in systems before FSMoE"
    )


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Cut every crossing of a layer at its degree."""
    if config.networks == "one":
        return _rewritten(one_network(plan), context, config).each_step(_glued)
    return _rewritten(plan, context, config)


def _glued(step: Step) -> Step:
    """Let each chunk of rows be gathered as soon as it has come, and leave as soon as it has been added up."""
    by_crossing: dict[tuple[str, bool, bool], list[Task]] = {}
    for task in step:
        op = task.op
        if isinstance(op, Rows) and not isinstance(op, RowSizes) and op.part not in (COUNTS, RELAYED):
            by_crossing.setdefault((op.module, op.part.endswith("_backward"), op.part in _OUT), []).append(task)
    blocks: dict[str, list[str]] = {}
    for tasks in by_crossing.values():
        names = [task.name for task in sorted(tasks, key=_first_position)]
        blocks.update(dict.fromkeys(names, names))
    return laid(step, blocks)


_OUT = ("dispatch", "gather", "combine_backward", "gather_backward")


def _first_position(task: Task) -> int:
    assert isinstance(task.op, Rows)
    return task.op.begin


def _rewritten(plan: Plan, context: Context, config: Config) -> Plan:
    if config.degree is not None:
        return cut_crossings(plan, lambda crossing: config.degree or 1)
    both: dict[str, list[Crossing]] = {}
    for step in plan.steps[:1]:
        for crossing in crossings(step):
            both.setdefault(crossing.module, []).append(crossing)
    best = {module: _best(plan, context, found) for module, found in both.items()}
    return cut_crossings(plan, lambda crossing: best[crossing.module])


def settings(config: Config) -> Iterator[Config]:
    """Yield a config with each degree that is tried."""
    for degree in DEGREES if config.degree is None else (config.degree,):
        yield config.model_copy(update={"degree": degree})


def _best(plan: Plan, context: Context, found: list[Crossing]) -> int:
    if any(len(crossing.stages) == 1 for crossing in found):
        return 1
    degrees = [degree for degree in DEGREES if degree <= found[0].positions]
    costs = [Costs(plan, context, one) for one in found]
    return min(degrees, key=lambda degree: (sum(one.makespan(degree) for one in costs), degree))


technique = Technique(
    name="tutel",
    slot=Slot.EXPERTS,
    rewrite=rewrite,
    source="arXiv:2206.03382",
    lossless=True,
    config=Config,
    settings=settings,
)
