"""`orch up`: a cluster that outlives the command, once; refused where it cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orch.gang import emulate_ray
from tests.gang.emulation import can_emulate

SMALL = """\
nodes: 2
devices_per_node: 1
device: {kind: cpu, name: example}
links: {inter: {alpha: 50us, bandwidth: 100Mbit, source: "example, not measured"}}
"""


@pytest.fixture
def small(project: Path) -> str:
    """The name of an emulated cluster that nobody else uses."""
    name = f"test-{os.getpid()}"
    (project / "clusters" / f"{name}.yaml").write_text(SMALL, encoding="utf-8")
    return name


@can_emulate
def test_it_is_up_once_until_it_is_down(orch, small: str) -> None:
    up = orch("up", small, "--json")
    try:
        assert up.code == 0, up.err
        assert {key: up.document[key] for key in ("cluster", "nodes")} == {"cluster": small, "nodes": 2}
        assert emulate_ray.kept()[up.document["name"]] == small
        again = orch("up", small)
        assert (again.code, again.err) == (2, f"'{small}' is up already; orch down {small} [E735]\n")
    finally:
        down = orch("down", small)
    assert (down.code, down.out) == (0, f"{small} is down\n")
    assert small not in emulate_ray.kept().values()


def test_it_is_refused_in_one_line_where_it_cannot_be(orch, small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    refused = orch("up", small)
    assert refused.code == 2
    assert refused.err.startswith("--on emulate makes network namespaces, which needs root; this is an ordinary user;")
    assert refused.err.count("\n") == 1


def test_a_cluster_of_gpus_or_without_a_network_is_refused(orch, project: Path, small: str) -> None:
    file = project / "clusters" / f"{small}.yaml"
    file.write_text(SMALL.replace("kind: cpu", "kind: gpu"), encoding="utf-8")
    assert "--on emulate makes nodes of CPUs; the cluster's device is a GPU" in orch("up", small).err
    file.write_text(SMALL.replace("links:", "about: none #"), encoding="utf-8")
    assert "links.inter is not described" in orch("up", small).err
    file.write_text(SMALL + "unequal: {2: {speed: 0.5}}\n", encoding="utf-8")
    assert "names node 2 in unequal, but has nodes 0 to 1" in orch("up", str(file)).err
    assert "did you mean" in orch("up", "emulated-4x200mbits").err
