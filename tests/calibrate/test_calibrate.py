"""A calibration of two real workers, and what is refused before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import pytest

from orch.calibrate import Asked, calibrate
from orch.calibrate import calibrate as found_by_name
from orch.cluster.node import Node
from orch.errors import OrchError
from orch.experiment.show import Quiet
from tests.gang.emulation import can_emulate


def asked(*, overrides: Sequence[str] = ("cluster.devices_per_node=2",), nodes: tuple[int, ...] = ()) -> Asked:
    return Asked("local-4", "processes", batch=8, techniques=("acp-sgd",), nodes=nodes, overrides=tuple(overrides))


def test_two_workers_are_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    module = __import__(found_by_name.__module__, fromlist=["LINKS_S"])
    monkeypatch.setattr(module, "LINKS_S", 0.5)
    monkeypatch.setattr(module, "LARGEST_BYTES", 1 << 15)
    found = calibrate(asked(), Quiet())
    cluster = found.cluster
    assert {one.collective for one in cluster.links.intra.measured} == {"all-reduce", "reduce-scatter", "all-gather"}
    assert all(dict(one.ways).keys() >= {"beside", "stolen"} for one in cluster.links.intra.measured)
    assert {"acp-sgd encode", "acp-sgd decode", "error-feedback compensate"} <= cluster.operations.keys()
    assert all(line.seconds(1e-4) > 0.0 for line in cluster.operations.values())
    assert found.inputs.profiles["plain"].measured
    assert found.rates.flops_per_s > 1e8
    assert found.rates.bytes_per_s > 1e7
    assert found.error is None  # one world: nothing was held out


@pytest.mark.parametrize(
    ("nodes", "text"),
    [((8,), r"--nodes 8: local-4 has 1 to 2 ranks on its one node"), ((1,), r"a world of one rank has no links")],
)
def test_worlds_that_do_not_exist_are_refused(nodes: tuple[int, ...], text: str) -> None:
    with pytest.raises(OrchError, match=text):
        calibrate(asked(nodes=nodes), Quiet())


def test_a_cluster_that_nobody_knows_is_refused() -> None:
    with pytest.raises(OrchError, match="nowhere"):
        calibrate(Asked("nowhere", "processes"), Quiet())


@can_emulate
def test_emulated_worlds_are_made_of_the_clusters_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []

    def make(on: str, size: int, *, nodes: Sequence[Node], **_: object) -> NoReturn:
        made.append((size, len(nodes)))
        raise OrchError("enough", code="E710")

    monkeypatch.setattr(__import__(found_by_name.__module__, fromlist=["make_gang"]), "make_gang", make)
    with pytest.raises(OrchError, match="enough"):
        calibrate(Asked("emulated-4x200mbit", "emulate", nodes=(2, 4)), Quiet())
    assert made == [(2, 2)]
