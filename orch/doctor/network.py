"""Interfaces, ports, and what the kernel can make of networks: namespaces, and links shaped by rate, delay and loss."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

from orch.doctor.finding import Finding, lacking, noted, ok

_SIOCGIFADDR = 0x8915
_CAPABILITIES = 1 << 12 | 1 << 21  # CAP_NET_ADMIN, CAP_SYS_ADMIN
_TRIED_WITHIN_S = 5.0
_UI_PORT = 5000


@dataclass(frozen=True, slots=True)
class Shaping:
    """What `--on emulate` stands on. `missing`: what keeps it from working, with what to do; `without`: qdiscs not there."""

    missing: tuple[str, str] | None
    without: tuple[str, ...] = ()


def interfaces() -> dict[str, str]:
    """Return the IPv4 address of every interface that has one."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def network() -> Finding:
    """List the interfaces over which several machines could meet."""
    found = interfaces()
    text = ", ".join(f"{name} {address}" for name, address in found.items())
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
    """Try what emulation needs in a network namespace that ends with the trying process."""
    if not _may_make_networks():
        return Shaping(("not root (CAP_NET_ADMIN and CAP_SYS_ADMIN)", "run as root, or in a privileged container"))
    for tool, package in (("ip", "iproute2"), ("tc", "iproute2"), ("unshare", "util-linux")):
        if shutil.which(tool) is None:
            return Shaping((f"no {tool}", f"apt-get install {package}"))
    if not _in_namespace("ip link add name one type veth peer name two; ip link add name three type bridge"):
        why = "this kernel or container makes no network namespaces with veth and bridge"
        return Shaping((why, "a privileged container, or modprobe veth bridge"))
    limited = _in_namespace("tc qdisc add dev lo root tbf rate 100mbit burst 64k latency 10ms")
    if not limited:
        return Shaping(("this kernel has no token-bucket filter", "modprobe sch_tbf"))
    delayed = _in_namespace("tc qdisc add dev lo root netem delay 1ms loss 1%")
    return Shaping(None, () if delayed else ("netem",))


def shaping(found: Shaping) -> Finding:
    """Say what `try_shaping` found."""
    if found.missing is not None:
        return noted("namespaces", found.missing[0], "no --on emulate", found.missing[1])
    if found.without:
        cost = "emulated links have rates, but clusters that ask for delay or loss are refused"
        return noted("namespaces", "yes, shaped by tbf; no netem", cost, "modprobe sch_netem, or another kernel")
    return ok("namespaces", "yes, shaped by tbf and netem")


def _may_make_networks() -> bool:
    try:
        for line in Path("/proc/self/status").read_text("ascii").splitlines():
            if line.startswith("CapEff:"):
                return int(line.split()[1], 16) & _CAPABILITIES == _CAPABILITIES
    except (OSError, ValueError):
        pass
    return os.geteuid() == 0


def _in_namespace(commands: str) -> bool:
    command = ["unshare", "--net", "sh", "-ec", f"ip link set lo up; {commands}"]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_TRIED_WITHIN_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
