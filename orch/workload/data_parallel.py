"""Synchronous data-parallel training: every rank computes a gradient, the mean of all is applied.

The plain plan sends each gradient as soon as it exists, one all-reduce a tensor, and updates when all have arrived.
Techniques merge, delay, split or compress from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from orch.plan import (
    COMPUTE,
    NET,
    AllReduce,
    Backward,
    Buffer,
    Compute,
    Forward,
    Group,
    Plan,
    Segment,
    Step,
    Task,
    Update,
)

if TYPE_CHECKING:
    from orch.models.profile import Module, Profile, Tensor

# Activations are written once by forward; backward reads them and writes as much again (baselines-dp brief, section 5:
# 12 bytes an output element over both, one third of it in forward).
FORWARD_BYTES_PER_ELEMENT = 4.0
BACKWARD_BYTES_PER_ELEMENT = 8.0


def data_parallel(
    profile: Profile,
    world_size: int,
    batch: int,
    *,
    precision: str = "fp32",
    gradient_dtype: str = "fp32",
    update_s: float | None = None,
) -> Plan:
    """Return the plain plan of one step of `profile` with `batch` samples a worker.

    `precision` is the dtype of the model's arithmetic, `gradient_dtype` the one on the wire; `update_s` the measured
    seconds of the optimiser. With one worker there is nothing to send.
    """
    tasks = [forward_task(module, batch, precision) for module in profile.modules]
    sends: list[Task] = []
    numel = 0
    for name, modules, tensors in backward_parts(profile):
        tasks.append(backward_task(name, modules, tensors, batch, precision))
        for tensor in tensors:
            items = tensor.numel
            numel += items
            if world_size > 1:
                sends.append(gradient_send(tensor.name, items, name, gradient_dtype))
                tasks.append(sends[-1])
    after = tuple([send.name for send in sends])
    tasks.append(Task("update", Update(profile.ready_order, numel, seconds=update_s), COMPUTE, after))
    return Plan.of(profile.name, world_size, tasks)


def without_peers(plan: Plan) -> Plan:
    """Return the plan for a world of one in which every task of `plan`, its collectives included, is still there: what
    it takes then is compute, and the runtime's own work.
    """
    one = range(1)
    return Plan(plan.name, 1, plan.steps, {"all": one}, {"world": Group("world", (one,))})


def retimed(plan: Plan, plain: Plan) -> Plan:
    """Return a plan that passes made of `plain`, with compute and updates as long as they are in this `plain`."""
    seconds = {task.name: task.op.seconds for task in plain.steps[0] if isinstance(task.op, Compute)}
    wholes = {name: op for task in plain.updates() if isinstance(op := task.op, Update) for name in op.parameters}

    def timed(task: Task) -> Task:
        op = task.op
        if isinstance(op, Compute):
            return replace(task, op=replace(op, seconds=_as_measured(task, seconds)))
        if isinstance(op, Update) and op.parameters:
            return replace(task, op=wholes[op.parameters[0]].of(op.parameters, op.numel))
        return task

    return plan.each_step(lambda step: Step(tuple(timed(task) for task in step)))


def _as_measured(task: Task, seconds: Mapping[str, float | None]) -> float | None:
    """Return the seconds of a task as the plain plan has them now."""
    op: Any = task.op
    if getattr(op, "stands_for", ()):
        found = [seconds[name] for name in op.stands_for]
        return op.seconds if None in found else sum(found)  # type: ignore[arg-type]
    # A chunk of a mixture's experts has the seconds of all of them, of which it takes its share.
    name = task.name if task.name in seconds else task.name.rpartition(".c")[0]
    return seconds.get(name, op.seconds)


def forward_reads(profile: Profile) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return, in forward order, each forward task with the parameters that its module reads."""
    reads: dict[str, list[str]] = {module.name: [] for module in profile.modules}
    for tensor in profile.tensors:
        for module in tensor.modules:
            reads[module].append(tensor.name)
    return tuple((f"forward.{name}", tuple(tensors)) for name, tensors in reads.items())


def backward_parts(profile: Profile) -> Iterable[tuple[str, tuple[Module, ...], tuple[Tensor, ...]]]:
    """Backward segments with unique names: each is named after the module that ends it."""
    counts: dict[str, int] = {}
    last = "loss"
    for segment in profile.backward_segments():
        last = segment.modules[-1].name if segment.modules else last
        counts[last] = counts.get(last, 0) + 1
        suffix = f"#{counts[last]}" if counts[last] > 1 else ""
        yield f"backward.{last}{suffix}", segment.modules, segment.tensors


def forward_task(module: Module, batch: int, precision: str) -> Task:
    """Return the forward of one module over a worker's `batch` samples."""
    moved = FORWARD_BYTES_PER_ELEMENT * module.activation_elements * batch
    return _shared_forward(module.name, module.flops * batch, moved, precision, module.forward_s)


def backward_task(
    name: str, modules: tuple[Module, ...], tensors: tuple[Tensor, ...], batch: int, precision: str
) -> Task:
    """Return the backward of `modules` over a worker's `batch` samples, after which the gradients of `tensors` exist."""
    flops = activations = seconds = 0.0
    measured = True
    for module in modules:
        flops += module.backward_flops
        activations += module.activation_elements
        if module.backward_s is None:
            measured = False
        else:
            seconds += module.backward_s
    last = modules[-1].name if modules else ""
    moved = BACKWARD_BYTES_PER_ELEMENT * activations * batch
    ready = tuple([tensor.name for tensor in tensors])
    return _shared_backward(name, last, flops * batch, moved, precision, seconds if measured else None, ready)


# Tasks are values, so plans share equal ones: the stacks of a recipe, the points of a sweep and the sizes of a study
# draw the same tasks again and again, and making one costs more than looking it up.
_SHARED = 1 << 15


@lru_cache(_SHARED)
def _shared_forward(module: str, flops: float, moved: float, precision: str, seconds: float | None) -> Task:
    return Task(f"forward.{module}", Forward(module, flops, moved, precision, seconds))


@lru_cache(_SHARED)
def _shared_backward(
    name: str, module: str, flops: float, moved: float, precision: str, seconds: float | None, ready: tuple[str, ...]
) -> Task:
    return Task(name, Backward(module, flops, moved, precision, seconds, ready))


@lru_cache(_SHARED)
def gradient_send(tensor: str, numel: int, ready: str, dtype: str) -> Task:
    """Return the all-reduce of one gradient of `numel` items, which exists once task `ready` has ended."""
    name = f"all_reduce.{tensor}"
    return Task(name, AllReduce(Buffer(name, (Segment(tensor, numel, dtype, tensor),))), NET, (ready,))
