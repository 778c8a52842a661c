"""Peak memory of a worker, estimated from what a step must hold."""

from __future__ import annotations

from orch.models.profile import Profile
from orch.plan import ITEM_SIZE, AllGather, Collective, Plan

# Values an optimiser keeps per parameter, fp32 (torch.optim: SGD keeps a momentum buffer only when asked to).
OPTIMIZER_VALUES = {"sgd": 0, "sgd-momentum": 1, "adagrad": 1, "rmsprop": 1, "adam": 2, "adamw": 2}


def peak_memory_bytes(plan: Plan, profile: Profile, batch: int, precision: str, optimizer: str) -> int:
    """Return bytes: parameters, gradients, optimiser state, activations of the batch, buffers and technique state.

    An estimate: every module's output is kept for backward in `precision`; parameters and gradients are fp32; the
    allocator's own waste and temporary workspaces are not counted.
    """
    parameters = 4 * profile.numel
    gradients = 4 * sum(profile.tensor(name).numel for name in profile.ready_order)
    optimizer_state = 4 * OPTIMIZER_VALUES.get(optimizer, 2) * profile.numel
    activations = int(ITEM_SIZE[precision] * profile.activation_elements * batch)
    return parameters + gradients + optimizer_state + activations + _buffers(plan) + _state(plan)


def _buffers(plan: Plan) -> int:
    """Flat buffers of one step; a gathered payload is held once a rank. Gradients in a bucket are views, but packed
    from their own.
    """
    sizes: dict[str, int] = {}
    for step in plan.steps:
        for task in step:
            if isinstance(task.op, Collective):
                copies = plan.groups[task.group].size + 1 if isinstance(task.op, AllGather) else 1
                sizes[task.op.buffer.name] = max(sizes.get(task.op.buffer.name, 0), copies * task.op.nbytes)
    return sum(sizes.values())


def _state(plan: Plan) -> int:
    """What operations keep between steps. Steps of a period share it, so the largest step counts."""
    return max((sum(task.op.state_bytes for task in step) for step in plan.steps), default=0)
