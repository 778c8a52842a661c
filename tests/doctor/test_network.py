"""Interfaces, ports and namespaces."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

from orch.doctor import network
from orch.doctor.finding import State
from orch.doctor.network import Shaping


def test_interfaces_have_addresses_that_can_be_bound() -> None:
    found = network.interfaces()
    assert found["lo"] == "127.0.0.1"
    for address in found.values():
        with socket.socket() as probe:
            probe.bind((address, 0))


def test_a_machine_with_loopback_only_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "interfaces", lambda: {"lo": "127.0.0.1"})
    assert network.network().state is State.NOTE


def test_the_port_of_the_browser_is_told_when_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(network, "_UI_PORT", port)
        assert f"{port} is taken" in network.ports().found


def test_every_lack_of_emulation_has_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_may_make_networks", lambda: False)
    found = network.shaping(network.try_shaping())
    assert found.text() == (
        "not root (CAP_NET_ADMIN and CAP_SYS_ADMIN); no --on emulate; run as root, or in a privileged container"
    )
    monkeypatch.setattr(network, "_may_make_networks", lambda: True)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "tc" else f"/sbin/{tool}")
    assert network.try_shaping().missing == ("no tc", "apt-get install iproute2")
    monkeypatch.setattr(shutil, "which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr(network, "_in_namespace", lambda commands: "netem" not in commands)
    assert network.try_shaping() == Shaping(None, ("netem",))
    assert "clusters that ask for delay or loss are refused" in network.shaping(network.try_shaping()).cost
    monkeypatch.setattr(network, "_in_namespace", lambda commands: "tbf" not in commands)
    assert network.try_shaping().missing == ("this kernel has no token-bucket filter", "modprobe sch_tbf")


def test_trying_leaves_nothing_behind() -> None:
    before = {name for _, name in socket.if_nameindex()}, set(os.listdir("/run")), Path("/proc/self/ns/net").readlink()
    network.try_shaping()
    assert (
        {name for _, name in socket.if_nameindex()},
        set(os.listdir("/run")),
        Path("/proc/self/ns/net").readlink(),
    ) == before
