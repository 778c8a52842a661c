"""Leftovers: what has no living owner is found and removed; what has one is left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orch.cluster.node import Node
from orch.gang import emulate_leftovers
from orch.gang.emulate_leftovers import TAG, Leftover, claim, is_alive, leftovers, parts, remove
from tests.gang.emulation import can_emulate, network
from tests.gang.test_janitor import becomes_true


@pytest.fixture(autouse=True)
def own_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """States of these tests are nobody else's."""
    monkeypatch.setattr(emulate_leftovers, "ROOT", str(tmp_path))
    return tmp_path


def of(cluster: str) -> list[Leftover]:
    return [found for found in leftovers() if found.cluster == cluster]


def test_a_cluster_lives_as_long_as_its_owner(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    cluster = claim({"owner": emulate_leftovers.identity_of(owner.pid)})
    assert is_alive(cluster)
    assert of(cluster) == []
    owner.communicate(b"\n")
    assert not is_alive(cluster)
    assert of(cluster) == [Leftover(cluster, "directory", str(tmp_path / cluster))]
    assert remove(of(cluster)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_process_id_given_out_again_is_not_the_owner() -> None:
    pid, started = emulate_leftovers.identity_of(os.getpid()) or [0, 0]
    assert is_alive(claim({"owner": [pid, started]}))
    assert not is_alive(claim({"owner": [pid, started - 1]}))
    assert not is_alive(claim({}))


def test_a_tagged_process_of_a_dead_owner_is_killed() -> None:
    cluster = claim({"owner": [1, -1]})
    process = subprocess.Popen(["sleep", "3600"], env={TAG: cluster, "PATH": os.environ["PATH"]})
    assert becomes_true(lambda: Leftover(cluster, "process", str(process.pid)) in of(cluster))
    assert remove(of(cluster)) == []
    assert process.wait(10) == -9


def test_only_the_owner_may_read_the_state_and_nobody_else_may_make_one_up(tmp_path: Path) -> None:
    cluster = claim({"owner": [1, -1], "token": "secret"})
    assert (tmp_path / cluster).stat().st_mode & 0o777 == 0o700
    assert (tmp_path / cluster / "state.json").stat().st_mode & 0o777 == 0o600
    emulate_leftovers.write_state(cluster, {"token": "other"})
    assert emulate_leftovers.read_state(cluster) == {"token": "other"}
    assert emulate_leftovers.clusters() == [cluster]
    if os.getuid() == 0:
        os.chown(tmp_path / cluster / "state.json", 65534, 65534)
        assert emulate_leftovers.read_state(cluster) == {}


def test_what_another_has_in_the_same_place_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "orch-ray-12-abcdef").mkdir()
    (tmp_path / "orch-abcdefg").mkdir()
    assert [found for found in leftovers() if found.name.startswith(str(tmp_path))] == []


@can_emulate
def test_namespaces_interfaces_and_cpu_groups_are_found_and_removed() -> None:
    with network([Node(1e6, 1e6)] * 2) as net:
        found = parts(net.cluster)
        names = [f"{net.cluster}-1", f"{net.cluster}-0"]
        assert [thing.name for thing in found if thing.kind == "namespace"] == names
        assert [thing.name for thing in found if thing.kind == "interface"] == [*names, net.cluster]
        assert of(net.cluster) == []
        emulate_leftovers.write_state(net.cluster, {"owner": [1, -1]})
        assert of(net.cluster) == found
        assert remove(found) == []
        assert parts(net.cluster) == []


@can_emulate
def test_the_program_removes_one_cluster_without_orch() -> None:
    with network([Node(1e6, 1e6)]) as net, network([Node(1e6, 1e6)]) as other:
        subprocess.run([sys.executable, "-I", "-S", emulate_leftovers.__file__, net.cluster], check=True, env={})
        assert {thing.kind for thing in parts(net.cluster)} == {"directory"}  # which is not where the program looks
        assert {thing.kind for thing in parts(other.cluster)} >= {"namespace", "interface", "directory"}
