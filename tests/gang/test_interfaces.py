"""This machine's addresses, by the name of an interface or by the way to another host."""

from __future__ import annotations

import socket

import pytest

from orch.errors import OrchError
from orch.gang import interfaces


def test_interfaces_have_addresses_that_can_be_bound() -> None:
    found = interfaces.addresses()
    assert found["lo"] == "127.0.0.1"
    for address in found.values():
        with socket.socket() as probe:
            probe.bind((address, 0))


def test_the_first_interface_that_is_there_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "addresses", lambda: {"lo": "127.0.0.1", "eth0": "10.0.0.2", "ib0": "10.1.0.2"})
    assert interfaces.address_of("ib1, ib0,eth0") == "10.1.0.2"
    with pytest.raises(
        OrchError, match=r"has no interface 'eht0' with an IPv4 address; did you mean eth0\? there are lo 127"
    ):
        interfaces.address_of("eht0")


def test_the_way_to_another_host_is_no_loopback_address_if_there_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = {"node7": "127.0.1.1", "node8": "10.0.0.2", "192.0.2.1": "10.0.0.2"}  # Debian calls a host itself 127.0.1.1
    monkeypatch.setattr(interfaces, "_way", lambda target: ways.get(target[0], ""))
    assert interfaces.own_address("node7") == "10.0.0.2"
    assert interfaces.own_address("node8") == "10.0.0.2"
    ways.pop("192.0.2.1")
    assert interfaces.own_address("node7") == "127.0.1.1"
    assert interfaces.own_address("nowhere") == "127.0.0.1"
    assert interfaces.is_loopback("")
    monkeypatch.delenv("ORCH_INTERFACE", raising=False)
    assert interfaces.chosen_address() == "127.0.0.1"
    monkeypatch.setenv("ORCH_INTERFACE", "lo")
    assert interfaces.chosen_address() == interfaces.addresses()["lo"]
