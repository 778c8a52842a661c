"""When tasks could start if no collective took time: what planners of schedules ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orch.plan import Collective, Plan
from orch.plan.operations import seconds_of
from orch.plan.plan import COMPUTE

if TYPE_CHECKING:
    from orch.cluster import Cluster


def ready_times(plan: Plan, step: int, cluster: Cluster) -> dict[str, float]:
    """Return the start of every task of one step, seconds from the step's start, with communication free.

    Forward times count: the first backward task starts after the whole forward pass.
    """
    spans = {name: cluster.span(group.blocks[0]) for name, group in plan.groups.items()}
    starts: dict[str, float] = {}
    ends: dict[str, float] = {}
    compute = 0.0
    for task in plan.steps[step].tasks:
        start = compute if task.stream == COMPUTE else 0.0
        for name in task.after:
            if ends[name] > start:
                start = ends[name]
        end = start
        if not isinstance(task.op, Collective):
            end += seconds_of(task.op, cluster, spans[task.group])
        starts[task.name], ends[task.name] = start, end
        if task.stream == COMPUTE:
            compute = end
    return starts
