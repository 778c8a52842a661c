"""What smaller worlds say of the largest, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orch.calibrate.backtest import backtest
from orch.cluster import Cluster, Device, Link, Links, Span


def world(ranks: int, alpha_s: float, beta_s: float) -> Cluster:
    """Return one node whose all-reduce takes what a ring of `ranks` takes, measured at two sizes."""
    table = {size: 2 * (ranks - 1) * alpha_s + 2 * (ranks - 1) / ranks * size * beta_s for size in (1e3, 1e6)}
    link = Link.from_tables(
        {"all-reduce": table}, Span(ranks, 1, ranks), "here", ways={"beside": {"all-reduce": table}}
    )
    return Cluster("c", 1, ranks, Device("cpu", "d", {"fp32": 1e9}), Links(intra=link))


def test_a_network_that_follows_the_closed_form_is_predicted_exactly() -> None:
    residuals = backtest([world(2, 1e-4, 1e-9), world(4, 1e-4, 1e-9)])
    assert {(one.way, one.nbytes) for one in residuals} == {
        (way, n) for way in ("queued", "beside") for n in (1e3, 1e6)
    }
    assert [one.error for one in residuals] == pytest.approx([0.0] * 4, abs=1e-9)


def test_the_nearest_world_speaks_and_the_error_has_a_sign() -> None:
    residuals = backtest([world(2, 9.0, 9.0), world(4, 1e-4, 1e-9), world(8, 2e-4, 2e-9)])
    assert [one.error for one in residuals] == pytest.approx([-0.5] * 4, rel=1e-6)


def test_one_world_has_nothing_to_be_held_against() -> None:
    assert backtest([world(4, 1e-4, 1e-9)]) == ()
    inside = world(2, 1e-4, 1e-9)
    across = replace(inside, nodes=2, devices_per_node=2, links=Links(inter=inside.links.intra))
    assert backtest([inside, across]) == ()  # another link
