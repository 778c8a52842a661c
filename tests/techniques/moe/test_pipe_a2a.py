"""Pipe-A2A: halves that make the whole, the paper's times, and nothing where nodes offer no second network."""

import pytest

from orch.cluster import Cluster, Device, Level, Link, Links
from orch.plan import FAR, NEAR, AllToAll, check
from orch.simulate import simulate
from orch.testing import mixture, small
from orch.workload import Layout, mixture_training
from techniques.moe import pipe_a2a


def links(nodes: int, per_node: int, inner_s: float, outer_s: float) -> Cluster:
    """A cluster whose messages cost a start-up only: `inner_s` inside a node, `outer_s` between nodes."""
    device = Device("gpu", "example", {"fp32": 1e30}, memory_bytes_per_s=1e30)
    return Cluster("example", nodes, per_node, device, Links(Link(Level(inner_s)), Link(Level(outer_s))))


@pytest.mark.parametrize("capacity", [None, 1.0])
@pytest.mark.parametrize(("nodes", "per_node"), [(2, 2), (2, 4), (4, 2)])
def test_both_halves_at_once_take_the_longer_one(capacity: float | None, nodes: int, per_node: int) -> None:
    world = nodes * per_node
    model = mixture.layers(tokens=24, experts=world, capacity=capacity)
    where = links(nodes, per_node, 3.0, 1.0)
    plain = mixture_training(model, Layout(world, world), 1)
    plan = check(pipe_a2a.rewrite(plain, small.context(model, where), pipe_a2a.Config()), finished=True)
    halves: dict[str, dict[str, AllToAll]] = {}
    for task in plan.steps[0].of(AllToAll):
        assert isinstance(task.op, AllToAll)
        if task.op.leg in (NEAR, FAR):
            halves.setdefault(task.op.part, {})[task.op.leg] = task.op
    whole = {task.op.part: task.op.nbytes for task in plain.steps[0].of(AllToAll)}
    for part, legs in halves.items():
        assert legs[NEAR].nbytes + legs[FAR].nbytes == whole[part]
        assert legs[NEAR].nbytes == pytest.approx(whole[part] * per_node / world, rel=0.05)
    inner, outer = 3.0 * (per_node - 1), 1.0 * (world - per_node)
    spans = {span.task.name: span for span in simulate(plan, where).spans(0)}
    counted = 0.0 if capacity else inner + outer
    found = spans["expert.0.moe"].start_s - spans["order.0.moe"].end_s - counted
    assert found == pytest.approx(max(inner, outer))
    before = {span.task.name: span for span in simulate(plain, where).spans(0)}
    direct = before["expert.0.moe"].start_s - before["order.0.moe"].end_s - counted
    assert direct == pytest.approx(inner + outer)


@pytest.mark.parametrize(("nodes", "per_node", "experts"), [(1, 4, 4), (4, 1, 4), (2, 2, 2), (2, 2, 1)])
def test_without_two_networks_nothing_changes(nodes: int, per_node: int, experts: int) -> None:
    model = mixture.layers(experts=4)
    plain = mixture_training(model, Layout(4, experts), 1)
    assert pipe_a2a.rewrite(plain, small.context(model, links(nodes, per_node, 1.0, 1.0)), pipe_a2a.Config()) is plain
