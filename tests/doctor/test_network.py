"""Interfaces, ports and namespaces."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from orch.cluster.node import Node
from orch.doctor import network
from orch.doctor.finding import State
from orch.doctor.network import Shaping
from orch.errors import OrchError
from orch.gang import emulate_net, interfaces


def test_a_machine_with_loopback_only_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORCH_INTERFACE", raising=False)
    monkeypatch.setattr(interfaces, "addresses", lambda: {"lo": "127.0.0.1"})
    assert network.network().state is State.NOTE


def test_the_interface_that_was_chosen_is_shown_or_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "addresses", lambda: {"lo": "127.0.0.1", "eth0": "10.0.0.2"})
    monkeypatch.setenv("ORCH_INTERFACE", "eth0")
    assert network.network().found == "lo 127.0.0.1, eth0 10.0.0.2; workers of several machines meet on 10.0.0.2"
    monkeypatch.setenv("ORCH_INTERFACE", "ib0")
    found = network.network()
    assert (found.state, "no interface 'ib0'" in found.cost) == (State.LACK, True)


def test_the_port_of_the_browser_is_told_when_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(network, "_UI_PORT", port)
        assert f"{port} is taken" in network.ports().found


def test_the_lacks_of_emulation_are_those_it_would_refuse_for(monkeypatch: pytest.MonkeyPatch) -> None:
    real = emulate_net.refuse

    def refuse(nodes: Sequence[Node]) -> None:
        if any(node.delay_s or node.loss for node in nodes):
            raise OrchError("--on emulate cannot give a link delay: this kernel has no netem", code="E731")

    monkeypatch.setattr(emulate_net, "refuse", refuse)
    assert network.try_shaping() == Shaping(None, ("delay", "loss"))
    found = network.shaping(network.try_shaping())
    assert (found.state, found.cost) == (State.NOTE, "emulated clusters that ask for delay or loss are refused")

    def refuse_all(nodes: Sequence[Node]) -> None:
        raise OrchError("--on emulate needs iproute2; there is no tc", code="E730", hint="apt-get install iproute2")

    monkeypatch.setattr(emulate_net, "refuse", refuse_all)
    assert network.shaping(network.try_shaping()).text() == (
        "needs iproute2; there is no tc; no --on emulate; apt-get install iproute2"
    )
    assert network.shaping(Shaping(None)).state is State.OK
    monkeypatch.setattr(emulate_net, "refuse", real)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert network.try_shaping().missing == (
        "makes network namespaces, which needs root; this is an ordinary user", "run as root, or in a privileged container",
    )  # fmt: skip


def test_trying_leaves_nothing_behind() -> None:
    before = {name for _, name in socket.if_nameindex()}, Path("/proc/self/ns/net").readlink()
    network.try_shaping()
    assert ({name for _, name in socket.if_nameindex()}, Path("/proc/self/ns/net").readlink()) == before
