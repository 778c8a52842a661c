"""The same recipe on other clusters: more or fewer workers, a faster or slower link. Every stack is planned anew there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from orch.cluster import Cluster, Link
from orch.errors import OrchError
from orch.experiment.predict import Inputs, plan_stack
from orch.recipe import Recipe
from orch.simulate import simulate


@dataclass(frozen=True)
class Cell:
    """One stack on one cluster that may not exist, its link `factor` times as fast: simulated."""

    workers: int
    factor: float
    stack: str
    step_time_s: float


def resized(cluster: Cluster, workers: int) -> Cluster | None:
    """Return `cluster` with so many workers: whole nodes of the same kind, or one node with fewer (or, where there is only
    one, more) devices. None where nodes would not be full.
    """
    per_node = cluster.devices_per_node
    if cluster.nodes == 1 or workers < per_node:
        nodes, per_node = 1, workers
    elif workers % per_node:
        return None
    else:
        nodes = workers // per_node
    speed = {rank: factor for rank, factor in cluster.speed.items() if rank < workers}
    unequal = {number: node for number, node in cluster.unequal.items() if number < nodes}
    return replace(cluster, nodes=nodes, devices_per_node=per_node, speed=speed, unequal=unequal)


def slowest_link(cluster: Cluster) -> Link | None:
    """Return the link that decides: the one between nodes where there are several."""
    return cluster.links.inter if cluster.nodes > 1 else cluster.links.intra


def bit_per_s(cluster: Cluster) -> float | None:
    """Return the bandwidth of the link that decides, as its cost model has it; None where it is not known."""
    link = slowest_link(cluster)
    beta = link.point_to_point().beta_s_per_byte if link is not None else 0.0
    return 8.0 / float(beta) if beta > 0 else None


def faster(cluster: Cluster, factor: float) -> Cluster:
    """Return `cluster` with a link that moves bytes `factor` times as fast; start-ups stay. It is the link between nodes
    where there are several.
    """
    link = slowest_link(cluster)
    if link is None or factor == 1.0:
        return cluster
    scaled = link.scaled(1.0, 1.0 / factor)
    return cluster.with_links(inter=scaled) if cluster.nodes > 1 else cluster.with_links(intra=scaled)


def explore(
    recipe: Recipe,
    inputs: Inputs,
    workers: Iterable[int],
    factors: Sequence[float],
    stacks: Sequence[str] | None = None,
) -> list[Cell]:
    """Return every stack on every cluster of the grid: numbers of workers, times the link's bandwidth.

    The batch of a worker stays as it is. Sizes that fill no nodes, or need a link that nobody described, are left out; so
    is every other size for a mixture of experts or stages of a pipeline, which were shared out among the workers there are.
    """
    cells: list[Cell] = []
    sized = [found for count in workers if (found := resized(inputs.cluster, count)) is not None]
    if recipe.layout.cuts or any(profile.mixtures for profile in inputs.profiles.values()):
        sized = [found for found in sized if found.world_size == inputs.cluster.world_size]
    for factor in factors:
        links = faster(inputs.cluster, factor).links
        for cluster in sized:
            at = replace(inputs, cluster=replace(cluster, links=links))
            for stack in stacks or recipe.stacks:
                try:
                    plan, _ = plan_stack(recipe, stack, at, timed=False)
                    seconds = simulate(plan, at.cluster).step_time_s
                except OrchError:  # a link that is not described, or a pass that has no answer there
                    continue
                cells.append(Cell(cluster.world_size, factor, stack, seconds))
    return cells
