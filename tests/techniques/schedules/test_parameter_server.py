"""Push and pull: what they carry, and what they cost where a cluster says so."""

from dataclasses import replace

import pytest

from orch.cluster import Curve, Link, Links, Measured
from orch.plan import AllGatherShards, AllReduce, ReduceScatter
from orch.simulate import simulate
from orch.testing.small import cluster, member, planned, profile
from techniques.schedules import bucketed, parameter_server

MODEL = profile([(5,), (3, 3), (1,)], [1.0] * 3)
LOOKUP = {"bucketed": bucketed.technique}


def plan_of(where, **knobs):
    return planned(MODEL, where, [member(parameter_server.technique, **knobs)], LOOKUP)


def test_each_gradient_is_pushed_and_pulled_back():
    step = plan_of(cluster(2)).steps[0]
    names = [task.name for task in step if task.stream == "net.inter"]
    assert names == [f"{kind}.b{number}" for number in range(3) for kind in ("reduce_scatter", "all_gather")]
    pushes, pulls = step.of(ReduceScatter), step.of(AllGatherShards)
    assert [push.op.nbytes for push in pushes] == [8, 40, 24]  # padded to two equal shares
    assert [pull.after for pull in pulls] == [(push.name,) for push in pushes]
    assert [pull.op.buffer for pull in pulls] == [push.op.buffer for push in pushes]


def test_a_bucket_is_pushed_once_it_is_full():
    step = plan_of(cluster(2), bucket="1MiB").steps[0]
    ((push,), (pull,)) = step.of(ReduceScatter), step.of(AllGatherShards)
    assert push.after == ("backward.l1",)
    assert step.tasks[-1].after == (pull.name,)


def test_a_tensor_without_elements_has_no_shares():
    plan = planned(profile([(0,), (2,)], [1.0] * 2), cluster(2), [member(parameter_server.technique)], LOOKUP)
    assert len(plan.steps[0].of(AllReduce)) == 1
    assert len(plan.steps[0].of(ReduceScatter)) == 1


def test_it_costs_what_the_cluster_says_of_its_halves():
    where = cluster(4, alpha_s=10.0)
    assert simulate(plan_of(where), where).step_time_s == pytest.approx(simulate_wfbp(where))
    (link,) = where.links.intra.measured
    halves = tuple(
        Measured(kind, link.span, Curve(0.5, 0.0), source="example") for kind in ("reduce-scatter", "all-gather")
    )
    served = replace(where, links=Links(intra=Link(measured=(link, *halves), source="example")))
    # Ready after 1, 2 and 3 s; a push and a pull take half a second each.
    assert simulate(plan_of(served), served).step_time_s == pytest.approx(4.0)


def simulate_wfbp(where):
    from techniques.schedules import wfbp

    return simulate(planned(MODEL, where, [member(wfbp.technique)], LOOKUP), where).step_time_s
