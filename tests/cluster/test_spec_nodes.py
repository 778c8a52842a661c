"""Nodes that differ: what a cluster file may say of them, what simulation and emulation then reckon with."""

from __future__ import annotations

from typing import Any

import pytest

from orch.cluster import Cluster, load
from orch.cluster.node import Node
from orch.errors import OrchError

FILE: dict[str, Any] = {
    "nodes": 4,
    "devices_per_node": 2,
    "device": {"kind": "cpu", "name": "example", "rate": {"fp32": "10GFLOP/s"}, "source": "example"},
    "links": {
        "inter": {"alpha": "100us", "bandwidth": "10MB/s", "source": "example"},
        "intra": {"alpha": "1us", "bandwidth": "10GB/s", "source": "example"},
    },
}
LARGE = 1e9


def cluster(unequal: object = None, inter: dict[str, Any] | None = None, **changes: object) -> Cluster:
    links = FILE["links"] | {"inter": FILE["links"]["inter"] | (inter or {})}
    return load(FILE | {"links": links, "unequal": unequal or {}} | changes, "x")


def test_a_node_is_as_the_links_say_but_for_what_it_differs_in() -> None:
    found = cluster({3: {"egress": "2MB/s"}, "1": {"bandwidth": "5MB/s", "speed": 0.5}})
    assert found.node(0) == Node(1e7, 1e7)
    assert found.node(1) == Node(5e6, 5e6, speed=0.5)
    assert found.node(3) == Node(2e6, 1e7)
    assert found.speeds() == [1.0, 1.0, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0]


def test_a_link_of_each_device_adds_up_to_its_node() -> None:
    assert cluster(inter={"per": "device"}).node(0) == Node(2e7, 2e7)


def test_a_measured_link_is_held_to_what_the_file_says() -> None:
    table = [{"ranks": 8, "table": {"1KB": "1ms", "1MB": "200ms"}}]
    measured = {"links": {"inter": {"measured": table, "shaped": "10MB/s", "source": "example"}}}
    assert cluster(**measured).node(2) == Node(1e7, 1e7)


def test_a_collective_goes_at_the_pace_of_its_slowest_member() -> None:
    even, uneven = cluster(), cluster({3: {"ingress": "2.5MB/s"}})
    whole = uneven.all_reduce_s(LARGE, uneven.world)
    assert whole == pytest.approx(4 * even.all_reduce_s(LARGE, even.world), rel=1e-3)
    without = uneven.span(range(6))
    assert uneven.all_reduce_s(LARGE, without) == even.all_reduce_s(LARGE, even.span(range(6)))
    inside = uneven.span([6, 7])
    assert uneven.all_reduce_s(LARGE, inside) == even.all_reduce_s(LARGE, even.span([6, 7]))
    assert uneven.communication_free().all_reduce_s(LARGE, uneven.world) == 0.0


def test_what_was_measured_with_the_slow_node_is_not_slowed_again() -> None:
    table = [{"ranks": 8, "table": {"1KB": "1ms", "1MB": "200ms"}}]
    links = {"inter": {"measured": table, "shaped": "10MB/s", "source": "example"}}
    uneven = cluster({0: {"bandwidth": "1MB/s"}}, links=links)
    assert uneven.all_reduce_s(1e6, uneven.world) == pytest.approx(0.2)


def test_delay_adds_to_every_message_and_loss_to_every_byte() -> None:
    plain, far = cluster(), cluster(inter={"delay": "10ms"})
    leaky = cluster(inter={"loss": "50%"})
    assert far.point_to_point_s(1.0, far.world) == pytest.approx(plain.point_to_point_s(1.0, plain.world) + 1e-2)
    assert leaky.point_to_point_s(LARGE, leaky.world) == pytest.approx(
        2 * plain.point_to_point_s(LARGE, plain.world), rel=1e-3
    )
    assert far.node(0) == Node(1e7, 1e7, delay_s=1e-2)
    assert leaky.node(0) == Node(1e7, 1e7, loss=0.5)
    late = cluster({2: {"delay": "20ms"}})
    assert late.point_to_point_s(1.0, late.world) == pytest.approx(plain.point_to_point_s(1.0, plain.world) + 2e-2)


def test_a_node_of_ranks_that_differ_is_no_one_machine() -> None:
    with pytest.raises(OrchError, match="cluster x: speed differs among the ranks of node 1") as caught:
        cluster(speed={2: 0.5}).node(1)
    assert caught.value.code == "E306"


def test_a_network_that_nobody_described_cannot_be_shaped() -> None:
    with pytest.raises(OrchError, match=r"links\.inter is not described"):
        cluster(links={}).node(0)
    assert cluster(nodes=1, links={}).node(0) == Node()


@pytest.mark.parametrize(
    ("unequal", "changes", "message"),
    [
        ({4: {"speed": 0.5}}, {}, "names node 4 in unequal, but has nodes 0 to 3"),
        ({"a": {"speed": 0.5}}, {}, "is not a rank"),
        ({1: {}}, {}, "says nothing; give bandwidth"),
        ({1: {"bandwidth": "1MB/s", "egress": "1MB/s"}}, {}, "gives bandwidth and a direction of its own"),
        ({1: {"speed": 0.0}}, {}, "greater than 0"),
        ({1: {"loss": "100%"}}, {}, "less than 1"),
        ({1: {"rate": "1MB/s"}}, {}, "not permitted"),
        ({1: {"egress": "1MB/s"}}, {"links": {}}, "there is no links.inter between nodes"),
        ({1: {"speed": 0.5}}, {"speed": {3: 0.5}}, "gives the speed of rank 3 in speed and in unequal.1"),
    ],
)
def test_what_makes_no_sense_is_refused(unequal: object, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OrchError, match=message):
        cluster(unequal, **changes)


def test_delay_alone_describes_no_link() -> None:
    with pytest.raises(OrchError, match="gives delay or loss without alpha and bandwidth"):
        cluster(links={"inter": {"delay": "1ms"}})
