"""A node: what a collective gets from it."""

from __future__ import annotations

import pytest

from orch.cluster.node import Node


@pytest.mark.parametrize(
    ("egress", "ingress", "rate"),
    [(2.0, 5.0, 2.0), (5.0, 2.0, 2.0), (None, 3.0, 3.0), (3.0, None, 3.0), (None, None, None)],
)
def test_the_lower_of_its_rates_counts(egress: float | None, ingress: float | None, rate: float | None) -> None:
    assert Node(egress, ingress).rate_bytes_per_s == rate
