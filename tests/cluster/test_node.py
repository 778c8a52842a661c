"""A node: what a collective gets from it."""

from __future__ import annotations

import pytest

from orch.cluster.node import Node, Pace, pace_of


@pytest.mark.parametrize(
    ("egress", "ingress", "rate"),
    [(2.0, 5.0, 2.0), (5.0, 2.0, 2.0), (None, 3.0, 3.0), (3.0, None, 3.0), (None, None, None)],
)
def test_the_lower_of_its_rates_counts(egress: float | None, ingress: float | None, rate: float | None) -> None:
    assert Node(egress, ingress).rate_bytes_per_s == rate


USUAL = Node(10.0, 10.0, delay_s=1.0)


def test_the_pace_is_that_of_the_slowest_and_the_farthest() -> None:
    assert pace_of([USUAL, USUAL], USUAL) == Pace(1.0, 0.0)
    assert pace_of([USUAL, Node(5.0, 20.0, delay_s=1.0), Node(10.0, 10.0, delay_s=4.0)], USUAL) == Pace(0.5, 3.0)
    assert pace_of([Node(10.0, 10.0, delay_s=1.0, loss=0.5)], USUAL) == Pace(0.5, 0.0)
    assert pace_of([Node(40.0, 40.0, delay_s=0.0)], USUAL) == Pace(4.0, -1.0)
    assert pace_of([Node(5.0, 5.0)], Node()) == Pace()  # nothing to compare with
