"""Interfaces, ports, and what the kernel can make of networks: namespaces, and links shaped by rate, delay and loss."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from orch.cluster.node import Node
from orch.doctor.finding import Finding, lacking, noted, ok
from orch.errors import OrchError
from orch.gang import emulate_net, interfaces
from orch.track import settings

_UI_PORT = 5000


@dataclass(frozen=True, slots=True)
class Shaping:
    """What `--on emulate` stands on. `missing`: what keeps it from working, with what to do; `without`: fields of a node that
    are refused.
    """

    missing: tuple[str, str] | None
    without: tuple[str, ...] = ()


def network() -> Finding:
    """List the interfaces over which several machines could meet."""
    found = interfaces.addresses()
    text = ", ".join(f"{name} {address}" for name, address in found.items())
    if names := settings.interface():
        try:
            text += f"; workers of several machines meet on {interfaces.address_of(names)}"
        except OrchError as error:
            return lacking("network", text, error.message, f"unset {settings.INTERFACE_VARIABLE}, or name one of these")
    if not any(not address.startswith("127.") for address in found.values()):
        return noted("network", text or "no address", "other machines cannot be reached", "configure an interface")
    return ok("network", text)


def ports() -> Finding:
    """Look whether this process may listen on loopback, from which ports, and whether the browser's own is free."""
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            probe.listen()
    except OSError as error:
        return lacking(
            "ports", f"cannot listen on 127.0.0.1: {error}", "workers cannot meet", "allow it in the sandbox"
        )
    try:
        low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii").split())
        text = f"the kernel picks from {low} to {high}"
    except (OSError, ValueError):
        text = "the kernel picks free ones"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", _UI_PORT))
        except OSError:
            text += f"; {_UI_PORT} is taken, so orch ui takes another"
    return ok("ports", text)


def try_shaping() -> Shaping:
    """Ask what emulation itself asks before it makes anything: for a rate, then for what some kernels lack."""
    refused = _refusal(Node())
    if refused is not None:
        fix = "run as root, or in a privileged container" if "needs root" in refused.message else refused.hint
        return Shaping((refused.message.removeprefix("--on emulate "), fix))
    further = {"delay": [Node(delay_s=1e-3)], "loss": [Node(loss=0.01)], "speed": [Node(), Node(speed=0.5)]}
    return Shaping(None, tuple(name for name, nodes in further.items() if _refusal(*nodes) is not None))


def _refusal(*nodes: Node) -> OrchError | None:
    try:
        emulate_net.refuse(nodes)
    except OrchError as error:
        return error
    return None


def shaping(found: Shaping) -> Finding:
    """Say what `try_shaping` found."""
    if found.missing is not None:
        return noted("namespaces", found.missing[0], "no --on emulate", found.missing[1])
    if found.without:
        cost = f"emulated clusters that ask for {' or '.join(found.without)} are refused"
        return noted(
            "namespaces", "yes, links shaped by rate", cost, "modprobe sch_netem (delay, loss); a cpu cgroup (speed)"
        )
    return ok("namespaces", "yes, links shaped by rate, delay and loss")
