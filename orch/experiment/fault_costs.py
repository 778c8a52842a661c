"""What faults make of a cluster, and what each is predicted to cost every stack's training; beside it what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from orch.cluster import Cluster
from orch.cluster.node import Node
from orch.experiment.outcome import Trained
from orch.experiment.predict import Forecast
from orch.plan.fault import Fault
from orch.recipe import Recipe
from orch.simulate import simulate


def node_under(node: Node, faults: Iterable[Fault]) -> Node:
    """Return a node as lasting `faults` leave it."""
    for fault in faults:
        match fault.kind:
            case "slow-node":
                node = replace(node, speed=node.speed / fault.amount)
            case "drop-rate":
                node = replace(node, loss=1.0 - (1.0 - node.loss) * (1.0 - fault.amount))
            case "link-rate":
                node = replace(
                    node,
                    egress_bytes_per_s=fault.egress_bytes_per_s or node.egress_bytes_per_s,
                    ingress_bytes_per_s=fault.ingress_bytes_per_s or node.ingress_bytes_per_s,
                )
    return node


def cluster_under(cluster: Cluster, described: Cluster, fault: Fault) -> Cluster:
    """Return `cluster` as a lasting fault leaves it. `described`: the cluster file's, from which what was measured may
    have been taken: measured compute is that of the slowest rank, and measured collectives are at its link's pace.
    """
    if fault.kind == "slow-node":
        measured = cluster.speed != described.speed
        speeds, usual = described.speeds(), min(described.speeds()) if cluster.speed != described.speed else 1.0
        slow = {rank: speeds[rank] / fault.amount / usual for rank in fault.ranks(described.devices_per_node)}
        kept = {rank: speed for rank, speed in slow.items() if speed < 1.0 or not measured}
        return replace(cluster, speed={**cluster.speed, **kept})
    node = node_under(described.node(fault.at), [fault])
    unequal = {**described.unequal, fault.at: replace(node, speed=1.0)}
    inter = cluster.links.inter
    if inter is None or inter.level is not None:
        return replace(cluster, unequal=unequal)
    before, after = _pace(described), _pace(replace(described, unequal=unequal))
    carried = tuple(replace(found, rate_bytes_per_s=before).at_rate(after) for found in inter.measured)
    return cluster.with_links(inter=replace(inter, measured=carried))


def _pace(cluster: Cluster) -> float:
    """Return the bytes a second that the slowest node gets through, which all wait for."""
    nodes = [cluster.node(number) for number in range(cluster.nodes)]
    rates = [(node.rate_bytes_per_s, 1.0 - node.loss) for node in nodes]
    return min((rate * whole for rate, whole in rates if rate is not None), default=float("inf"))


def costs(recipe: Recipe, forecast: Forecast, trained: Sequence[Trained] = ()) -> list[dict[str, Any]]:
    """Return what each fault is predicted to cost in each training, beside the time to make new workers: steps that are
    trained again, the step time while it holds, seconds more in all. `trained`: adds the measured step time.
    """
    found: list[dict[str, Any]] = []
    for fault in recipe.faults:
        for name in recipe.stacks if fault.stack is None else (fault.stack,):
            usual_s = forecast.stacks[name].step_time_s.median
            again, step_s, extra_s = 0, usual_s, fault.lasts_s
            if fault.kills:
                again = _lost_steps(recipe, name, fault)
                extra_s = again * usual_s
            elif fault.lasting:
                step_s = simulate(
                    forecast.stacks[name].plan, cluster_under(forecast.cluster, recipe.cluster, fault)
                ).step_time_s
                until = recipe.training_steps(name) if fault.until is None else fault.until
                extra_s = (until - fault.step) * (step_s - usual_s)
            found.append(
                {
                    "fault": str(fault),
                    "stack": name,
                    "steps_again": again,
                    "step_time_s": step_s,
                    "measured_step_time_s": _measured_s(fault, name, trained),
                    "extra_s": extra_s,
                }
            )
    return found


def _measured_s(fault: Fault, stack: str, trained: Sequence[Trained]) -> float | None:
    """Return the median time of the steps in which a lasting fault held; None where there were none."""
    times = [
        clock - before
        for one in trained
        if one.stack == stack and fault.lasting
        for step, (clock, before) in enumerate(zip(one.clock_s, [0.0, *one.clock_s], strict=False))
        if fault.holds(step)
    ]
    return median(times) if times else None


def _lost_steps(recipe: Recipe, stack: str, fault: Fault) -> int:
    """Return the steps that are trained twice when `fault` strikes: those after the checkpoint before it."""
    setting, measure = recipe.stacks[stack].train.checkpoint, recipe.measure
    if setting is None or setting.every is None:
        return fault.step
    at = kept = 0
    while at <= fault.step:
        if at - kept >= setting.every:
            kept = at
        at += measure.steps if at else measure.warmup or measure.steps
    return fault.step - kept
