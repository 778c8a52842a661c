"""S-SGD: synchronous SGD as the textbook has it; backward first, then one all-reduce a gradient. Lossless.

Helps: never; it is the reference that every lossless technique must equal, and the floor for schedules.
Source: the plain S-SGD of the DAG model of Shi et al., arXiv:1805.03812 (recollection).
"""

from dataclasses import replace

from orch.plan import Backward, Plan, Step
from orch.technique import Context, Knobs, Slot, Technique


class Config(Knobs):
    """No knobs."""


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Hold every send back until the last backward task has ended."""
    return plan.each_step(held_back)


def held_back(step: Step) -> Step:
    """Return the step with the gradients' first collectives behind the last backward task."""
    backward = step.of(Backward)
    step = step.by_wave()
    if not backward or not step.waves():
        return step
    last = backward[-1].name
    first_wave = {task.name for task in step.waves()[0]}
    # What a first wave waits for needs no network, so it can stand before all of the wave.
    ahead = [task for task, depth in zip(step, step.depths, strict=True) if not depth and task.name not in first_wave]
    sends = [replace(task, after=tuple(dict.fromkeys((*task.after, last)))) for task in step.waves()[0]]
    rest = [task for task, depth in zip(step, step.depths, strict=True) if depth]
    return Step((*ahead, *sends, *rest))


technique = Technique(
    name="s-sgd",
    slot=Slot.SCHEDULE,
    rewrite=rewrite,
    source="arXiv:1805.03812",
    lossless=True,
    config=Config,
    for_stages=True,
)
