"""CoCoNet: the product behind attention that ranks share is cut, so that what is added up of one part travels while the next is
computed.

Helps: samples shared by ranks (`parallel.tensor`), where a product and the all-reduce behind it take about equally long. Does not:
whole samples on every rank (then it changes nothing); small products, as every part starts a kernel and a collective. Lossless.
Source: Jangda et al., ASPLOS 2022 (arXiv:2105.05720): overlap of a product with the collective behind it, part by part, as
Mast's baseline has it for the output projection in forward (baselines-moe brief, section 8: README seen; derived). Its fusions
and its split of an all-reduce around other computing are left out. How many parts: the fewest that end soonest, by costs (ours).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from orch.plan import Forward, Meet, Plan, Project, Step, SumRows, Task
from orch.technique import Context, Knobs, Slot, Technique, count
from techniques.moe._pipeline import makespan, seconds

MOST = 8


class Config(Knobs):
    """How many parts."""

    parts: int | None = count(None, "parts of each product; default: the best of 1 to 8 by costs", least=1, most=64)


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Cut every product whose output ranks add up in forward."""
    steps = tuple(_cut(plan, step, context, config) for step in plan.steps)
    # By identity: of a grid of layers sizes are arrays, which are not compared.
    return plan if all(new is step for new, step in zip(steps, plan.steps, strict=True)) else replace(plan, steps=steps)


def _cut(plan: Plan, step: Step, context: Context, config: Config) -> Step:
    tasks = {task.name: task for task in step}
    changes: dict[str, Sequence[Task]] = {}
    for total in step.of(SumRows):
        met = tasks[total.after[0]]
        product = tasks.get(met.after[0]) if met.after else None
        if not isinstance(met.op, Meet) or product is None or not isinstance(product.op, Forward):
            continue
        op = total.op
        assert isinstance(op, SumRows)
        options = range(1, min(MOST, op.positions) + 1) if config.parts is None else (min(config.parts, op.positions),)
        drawn = [_parts(product, total, parts) for parts in options]
        best = drawn[0] if len(drawn) == 1 else min(drawn, key=lambda one: _ends_s(plan, context, one))
        if len(best) > 2:
            joined = next(task for task in step if total.name in task.after)
            nothing = replace(
                product.op, flops=0.0, moved_bytes=0.0, seconds=None if product.op.seconds is None else 0.0
            )
            changes |= {
                product.name: [replace(product, name=f"begin.{op.module}", op=nothing)],
                met.name: best,
                total.name: [],
                joined.name: [replace(joined, after=(best[-1].name,))],
            }
    return step.replace(changes) if changes else step


def _parts(product: Task, total: Task, parts: int) -> list[Task]:
    """Return the parts of a product, each followed by the sum of what it made."""
    op, total_op = product.op, total.op
    assert isinstance(op, Forward)
    assert isinstance(total_op, SumRows)
    positions = total_op.positions
    cuts = [positions * number // parts for number in range(parts + 1)]
    tasks: list[Task] = []
    for number, (begin, end) in enumerate(pairwise(cuts)):
        project = Project(op.module, op.flops, op.moved_bytes, op.dtype, op.seconds, positions, begin, end)
        # Named as chunks of the task that they stand for: what that is measured to take is theirs.
        made = f"{product.name}.c{number}"
        tasks.append(Task(made, project, after=(f"begin.{op.module}",)))
        name = f"{total.name}.c{number}"
        tasks.append(replace(total, name=name, op=total_op.cut(begin, end, name=name), after=(made,)))
    return tasks


def _ends_s(plan: Plan, context: Context, tasks: Sequence[Task]) -> float:
    times = [[seconds(plan, context, task) for task in tasks[first::2]] for first in (0, 1)]
    found: float = makespan(times, [tasks[0].stream, tasks[1].stream])
    return found


def settings(config: Config) -> Iterator[Config]:
    """Yield a config with each number of parts that may be chosen."""
    for parts in range(1, MOST + 1) if config.parts is None else (config.parts,):
        yield config.model_copy(update={"parts": parts})


technique = Technique(
    name="coconet",
    slot=Slot.SHARING,
    rewrite=rewrite,
    source="arXiv:2105.05720",
    lossless=True,
    config=Config,
    settings=settings,
)
