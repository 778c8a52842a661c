"""What a calibration writes is read back to the cluster that was measured."""

from __future__ import annotations

import json

import pytest
import yaml

from orch.calibrate.backtest import backtest
from orch.calibrate.calibrate import Asked, Calibration
from orch.calibrate.device import DeviceRates
from orch.calibrate.files import write
from orch.cluster import Cluster, Curve, Device, Link, Links, Overhead, Sharing, Span, load
from orch.cluster.node import Node
from orch.cluster.sharing import WAYS
from orch.experiment.predict import Inputs
from orch.models.profile import Profile
from orch.testing import small

ASKED = Asked("pair", "processes", techniques=("acp-sgd",))
SHARING, OVERHEAD = Sharing(source="s", lanes=2), Overhead(1e-4, 2e-5, "s")
PROFILE = small.profile([(4,), (8,)], [1.0, 2.0], [0.5, 0.25])


def measured(ranks: int) -> Cluster:
    tables = {"all-reduce": {1024.0: 1e-3 * ranks, 4096.0: 2e-3 * ranks}, "all-gather": {1024.0: 1e-3, 4096.0: 3e-3}}
    ways = {way: {"all-reduce": {1024.0: 5e-4, 4096.0: 7e-4}} for way in WAYS}
    link = Link.from_tables(tables, Span(ranks, 1, ranks), "here", ways=ways)
    device = Device("cpu", "a core", {"fp32": 1e9}, 1e9, 2.0**30)
    return Cluster("pair", 1, ranks, device, Links(intra=link), sharing=SHARING, overhead=OVERHEAD,
                   operations={"acp-sgd encode": Curve(3e-4, 1.25)})  # fmt: skip


@pytest.fixture
def calibration() -> Calibration:
    worlds = {ranks: measured(ranks) for ranks in (2, 4)}
    inputs = Inputs(worlds[4], {"plain": PROFILE}, {"plain": 0.1})
    return Calibration(inputs, worlds, DeviceRates(5e10, 4e9), backtest(list(worlds.values())))


def test_the_cluster_file_holds_every_world_and_way(calibration: Calibration, tmp_path) -> None:
    path = write(tmp_path, ASKED, calibration)[0]
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# measured 20")
    assert "back-test: worlds of 2 ranks predict the collectives of 4, held out, within" in text
    cluster = load(yaml.safe_load(text), "again")
    assert {found.span.size for found in cluster.links.intra.measured} == {2, 4}
    for ranks in (2, 4):
        span = Span(ranks, 1, ranks)
        assert cluster.all_reduce_s(2048, span) == pytest.approx(measured(ranks).all_reduce_s(2048, span), rel=1e-4)
        for way in WAYS:
            expected = measured(ranks).in_way(way).all_reduce_s(2048, span)
            assert cluster.in_way(way).all_reduce_s(2048, span) == pytest.approx(expected, rel=1e-4)
    assert cluster.sharing.lanes == 2
    assert (cluster.overhead.step_s, cluster.overhead.collective_s) == pytest.approx((1e-4, 2e-5))
    assert cluster.operations["acp-sgd encode"].seconds(2.0) == pytest.approx(3e-4 + 2.5)
    assert cluster.device.compute_s(5e10, 4e9) == pytest.approx(2.0, rel=1e-3)


def test_a_calibrated_link_is_carried_to_the_rate_it_is_held_to(tmp_path) -> None:
    span = Span(2, 2, 1)
    table = {float(size): 1e-3 + size / 125e6 for size in (1024, 1 << 20)}
    link = Link.from_tables({"all-reduce": table}, span, "here").held_to(Node(125e6, 125e6))
    cluster = Cluster("pair", 2, 1, Device("cpu", "a core", {"fp32": 1e9}, 1e9, 2.0**30), Links(inter=link))
    found = Calibration(Inputs(cluster, {"plain": PROFILE}, {"plain": 0.1}), {2: cluster}, DeviceRates(5e10, 4e9), ())
    data = yaml.safe_load(write(tmp_path, ASKED, found)[0].read_text(encoding="utf-8"))
    again = load(data, "again")
    assert again.node(0) == Node(125e6, 125e6)  # emulated once more, it is held to the same
    assert again.all_reduce_s(1 << 20, span) == pytest.approx(table[1 << 20], rel=1e-4)
    data["links"]["inter"]["shaped"] = "200Mbit"
    slower = load(data, "slower")
    assert slower.all_reduce_s(1 << 20, span) == pytest.approx(1e-3 + (1 << 20) / 25e6, rel=1e-4)
    assert slower.basis().kind == "fitted"


def test_the_profile_is_read_back(calibration: Calibration, tmp_path) -> None:
    path = write(tmp_path, ASKED, calibration)[1]
    profile = Profile.from_json(json.loads(path.read_text(encoding="utf-8")))
    assert (profile.modules, profile.tensors) == (PROFILE.modules, PROFILE.tensors)
    assert "batch of 32" in profile.source


def test_residuals_are_kept_as_a_table_and_drawn(calibration: Calibration, tmp_path) -> None:
    table, picture = write(tmp_path, ASKED, calibration)[2:]
    rows = table.read_text(encoding="utf-8").splitlines()
    assert rows[0] == "collective,way,bytes,predicted_s,measured_s,error"
    assert len(rows) == 1 + len(calibration.residuals) > 1
    assert picture.stat().st_size > 1000
