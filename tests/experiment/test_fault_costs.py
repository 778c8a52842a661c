"""What faults make of a cluster and of a training, predicted: steps twice, slower steps; and what was measured of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orch.cluster import Link, Links
from orch.cluster.node import Node
from orch.experiment.fault_costs import cluster_under, costs, node_under
from orch.experiment.outcome import Trained
from orch.experiment.predict import predict
from orch.plan.fault import Fault
from tests.experiment.test_injection import ONE, TWO_NODES

SLOW = Fault("slow-node", 1, 2, until=5, amount=4.0)
RATE = Fault("link-rate", 1, 2, egress_bytes_per_s=5e6)
LOSS = Fault("drop-rate", 0, 2, amount=0.5)


def test_a_forecast_counts_steps_that_are_trained_twice(tiny) -> None:
    settings = ("faults=[{kill_rank: {rank: 1, step: 5}}]", "train.checkpoint={every: 3}")
    recipe = tiny(*ONE, *settings)
    forecast = predict(recipe)
    found = {cost["stack"]: cost for cost in costs(recipe, forecast)}
    assert found["plain"]["steps_again"] == 1  # a checkpoint after step 4
    assert found["plain"]["extra_s"] == forecast.stacks["plain"].step_time_s.median
    assert found["plain"]["step_time_s"] == forecast.stacks["plain"].step_time_s.median
    without = costs(tiny(*ONE, settings[0]), forecast)
    assert without[0]["steps_again"] == 5
    assert Fault("kill-rank", 1, 5) in recipe.faults


def test_what_lasts_costs_its_steps_and_no_others(tiny) -> None:
    slow_one = "{slow_node: {node: 1, by: 4, step: 2, until: 5, stack: plain}}"
    faults = f"faults=[{slow_one}, {{link_rate: {{node: 0, bandwidth: 20Mbit, step: 5}}}}]"
    recipe = tiny(*ONE, *TWO_NODES, faults, workers=1)
    forecast = predict(recipe)
    slow, rated, _ = costs(recipe, forecast)
    usual = forecast.stacks["plain"]
    # Everybody waits for the slow node, whose computing takes four times as long.
    assert slow["step_time_s"] > usual.step_time_s.median
    assert slow["step_time_s"] == pytest.approx(usual.step_time_s.median + 3.0 * usual.compute_s, rel=0.3)
    assert slow["extra_s"] == pytest.approx(3 * (slow["step_time_s"] - usual.step_time_s.median))
    slower = predict(tiny(*ONE, *TWO_NODES, "cluster.unequal={0: {bandwidth: 20Mbit}}", workers=1))
    assert rated["step_time_s"] == pytest.approx(slower.stacks["plain"].step_time_s.median)
    assert rated["extra_s"] == pytest.approx(2 * (rated["step_time_s"] - usual.step_time_s.median))
    assert (slow["measured_step_time_s"], slow["steps_again"]) == (None, 0)


def test_measured_steps_are_those_in_which_it_held(tiny) -> None:
    recipe = tiny(*ONE, *TWO_NODES, "faults=[{slow_node: {node: 1, by: 4, step: 2, until: 5}}]", workers=1)
    trained = [Trained("plain", 0, clock_s=[1.0, 2.0, 6.0, 10.5, 14.0, 15.0])]
    plain, dear = costs(recipe, predict(recipe), trained)
    assert plain["measured_step_time_s"] == 4.0  # of 4, 4.5 and 3.5 s
    assert dear["measured_step_time_s"] is None


def test_a_node_under_faults_is_what_a_cluster_file_could_say() -> None:
    node = Node(25e6, 25e6, speed=0.5, loss=0.5)
    assert node_under(node, [SLOW, RATE, LOSS]) == Node(5e6, 25e6, speed=0.125, loss=0.75)
    assert node_under(node, []) is node


def test_what_was_measured_is_carried_to_the_fault(tiny) -> None:
    described = tiny(*ONE, *TWO_NODES, "cluster.unequal={0: {speed: 0.5}}", workers=1).cluster
    assert cluster_under(described, described, SLOW).speeds() == [0.5, 0.25]
    table = Link.from_tables({"all-reduce": {1e3: 1e-3, 1e6: 0.1}}, described.world, "measured here")
    measured = replace(described, links=Links(inter=table), speed={})
    # Measured compute is that of node 0, which is half as fast: node 1, slowed by 4, takes twice as long as that.
    assert cluster_under(measured, described, SLOW).speeds() == [1.0, 0.5]
    assert cluster_under(measured, described, replace(SLOW, amount=1.5)).speeds() == [1.0, 1.0]
    # The wire takes four times as long again at a fifth of the rate; what was not the wire takes what it took.
    world = measured.world
    before, after = (one.all_reduce_s(1e6, world) for one in (measured, cluster_under(measured, described, RATE)))
    assert after - before == pytest.approx(1e6 / 5e6 - 1e6 / 25e6, rel=0.01)  # two ranks send each byte once
    small = [one.all_reduce_s(1e3, world) for one in (measured, cluster_under(measured, described, RATE))]
    assert small[1] - small[0] == pytest.approx((before - after) * -1e-3, rel=0.01)
