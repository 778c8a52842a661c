"""Small models, clusters and contexts whose step times can be worked out by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orch import registry
from orch.cluster import Cluster, Curve, Device, Link, Links, Measured, Span
from orch.models.profile import Module, Profile, Tensor, reverse_ready_order
from orch.plan import Plan
from orch.simulate import makespan_s, ready_times, simulate
from orch.stack import Member, apply, arrange
from orch.technique import Context, Technique
from orch.workload import data_parallel, forward_reads

# Fast enough that what is measured in these examples is only what they name.
_FREE_DEVICE = Device("cpu", "example", {"fp32": 1e30, "bf16": 1e30, "fp16": 1e30}, memory_bytes_per_s=1e30)


def cluster(
    world_size: int, alpha_s: float = 0.0, beta_s_per_byte: float = 0.0, device: Device = _FREE_DEVICE
) -> Cluster:
    """Return one node on which an all-reduce of n bytes takes `alpha_s + n * beta_s_per_byte`, a half of it half as
    long.
    """
    span = Span(world_size, 1, world_size)
    curve = Curve(alpha_s, beta_s_per_byte)
    link = Link(measured=(Measured("all-reduce", span, curve, source="example"),), source="example")
    return Cluster("example", 1, world_size, device, Links(intra=link))


def profile(
    shapes: Sequence[tuple[int, ...] | Sequence[tuple[int, ...]]],
    backward_s: Sequence[float],
    forward_s: Sequence[float] | None = None,
) -> Profile:
    """Return a chain of layers l1, l2, ... in forward order, each with measured times and one tensor of each shape."""
    forward_s = [0.0] * len(shapes) if forward_s is None else forward_s
    modules, tensors = [], []
    for number, (shape, forward, backward) in enumerate(zip(shapes, forward_s, backward_s, strict=True), start=1):
        modules.append(Module(f"l{number}", 0.0, 0.0, forward_s=forward, backward_s=backward))
        several = shape if shape and not isinstance(shape[0], int) else (shape,)
        for index, one in enumerate(several):
            name = f"l{number}" if len(several) == 1 else f"l{number}.{index}"
            tensors.append(Tensor(f"{name}.weight", tuple(one), (f"l{number}",)))  # type: ignore[arg-type]
    order = reverse_ready_order(modules, tensors)
    return Profile("example", tuple(modules), tuple(tensors), order, "made up for an example")


def context(model: Profile, where: Cluster, gradient_dtype: str = "fp32", batch: int = 1) -> Context:
    """Return what passes over a plan of `model` on `where` may ask."""
    return Context(
        where,
        where.world_size,
        lambda plan, step: ready_times(plan, step, where),
        lambda plan: makespan_s(plan, where),
        {tensor.name: tensor.shape for tensor in model.tensors},
        forward_reads(model),
        gradient_dtype,
        model.mixtures,
        model.stages,
        batch,
    )


def planned(
    model: Profile,
    where: Cluster,
    stack: Iterable[Member],
    lookup: Mapping[str, Technique] | None = None,
    batch: int = 1,
) -> Plan:
    """Return the finished plan of a stack, with defaults taken from `lookup` (None: every technique known)."""
    find = registry.technique if lookup is None else lookup.__getitem__
    plain = data_parallel(model, where.world_size, batch, update_s=0.0)
    plan, _ = apply(plain, arrange(stack, find), context(model, where))
    return plan


def member(technique: Technique, **knobs: Any) -> Member:
    """Return a technique with knobs, as a recipe would give it."""
    return Member(technique, technique.config(**knobs))


def step_time_s(plan: Plan, where: Cluster) -> float:
    """Return the simulated step time in steady state, seconds."""
    return simulate(plan, where).step_time_s
