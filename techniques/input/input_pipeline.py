"""Input pipeline: what reading a batch and copying it to the device adds to a step, and how much of it runs ahead.

Helps nothing by itself: it says what a framework does with its input, so that frameworks can be compared (`orch plan`). With
nothing ahead both stand on the compute stream before forward; reading ahead has a host thread bring the next batch under the
step; copying ahead has it copied there too. One batch ahead is as good as many where batches are alike. Lossless.
Source: Shi, Wang, Chu, Li, A DAG model of synchronous SGD, ICPADS 2018 (arXiv:1805.03812).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from orch.plan import Fixed, Forward, Plan, Step, Task
from orch.technique import Context, Knobs, Slot, Technique, choice, quantity
from orch.units import Seconds

HOST, COPY = "host", "copy.h2d"


class Config(Knobs):
    """How long a batch takes on its way, and what of it happens under the step before."""

    read: Seconds = quantity("0s", "reading and decoding a worker's batch, the workers of a node together", least=0.0)
    to_device: Seconds = quantity("0s", "copying it to the device", least=0.0)
    ahead: Literal["nothing", "read", "copy"] = choice(
        "nothing", "what is done for the next batch under this step: nothing, reading, or reading and copying"
    )


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Put reading and copying before the first forward of every step, or beside the step before."""
    if not config.read and not config.to_device:
        return plan
    return plan.each_step(lambda step: _fed(step, config))


def _fed(step: Step, config: Config) -> Step:
    place = next((place for place, task in enumerate(step) if isinstance(task.op, Forward)), None)
    if place is None:
        return step
    first = step.tasks[place]
    own: list[Task] = []  # of this step's batch, before its forward
    following: list[Task] = []  # of the next step's, once this one's has been taken
    read, copied = Fixed("read", config.read), Fixed("copy", config.to_device)
    if config.ahead == "nothing":
        own += [Task("read", read), Task("copy", copied)]
    elif config.ahead == "read":
        own.append(Task("copy", copied, after_previous=("read",)))
        following.append(Task("read", read, HOST, ("copy",)))
    else:
        # Two batches at most are under way: this step's, and the one after it once the one before has been taken.
        following.append(Task("read", read, HOST, after_previous=("copy", first.name)))
        following.append(Task("copy", copied, COPY, ("read",)))
        first = replace(first, after_previous=(*first.after_previous, "copy"))
    return Step((*step.tasks[:place], *own, first, *following, *step.tasks[place + 1 :]))


def planned_only(config: Config) -> str:
    """Return why a stack with these knobs cannot be run: runs fetch batches before the clock starts."""
    return "reading and copying of batches are no part of a run" if config.read or config.to_device else ""


technique = Technique(
    name="input-pipeline",
    slot=Slot.INPUT,
    rewrite=rewrite,
    source="arXiv:1805.03812",
    lossless=True,
    config=Config,
    planned_only=planned_only,
)
