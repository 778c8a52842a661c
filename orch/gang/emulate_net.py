"""The network of an emulated cluster: a bridge, a namespace a node, a cable between them shaped at both ends.

The end inside a namespace holds what its node sends, the bridge's end what the node receives. A node's address is the
bridge's plus its number plus 2, and it has no route to anywhere else.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

from orch.cluster.node import Node
from orch.errors import OrchError, RunError
from orch.gang import shaping
from orch.gang.emulate_leftovers import ROOT, cpu_roots
from orch.gang.shaping import DEVICE, MTU, Shaping, bucket_of, host_end, namespace, netem, run

_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
_MOST_NODES = 200
_HINT = "orch plan needs none of it; --on local runs without a network"


def refuse(nodes: Sequence[Node], size: int | None = None, device: str = "cpu") -> None:
    """Raise OrchError where this machine cannot emulate such nodes with `size` workers, before anything is made."""
    if not nodes or (size or 0) % len(nodes):
        raise OrchError(f"{size} workers do not fill {len(nodes)} emulated nodes equally", code="E710")
    if device != "cpu":
        text = "--on emulate makes nodes of CPUs; the cluster's device is a GPU"
        raise OrchError(text, code="E730", hint="name a cluster with device.kind: cpu, such as emulated-4x200mbit")
    if not sys.platform.startswith("linux"):
        raise OrchError(f"--on emulate needs Linux; this is {sys.platform}", code="E730", hint=_HINT)
    missing = [name for name, bit in _CAPABILITIES.items() if not _capabilities() >> bit & 1]
    if os.geteuid() or missing:
        who = "this is an ordinary user" if os.geteuid() else f"this root has no {' and no '.join(missing)}"
        raise OrchError(f"--on emulate makes network namespaces, which needs root; {who}", code="E730", hint=_HINT)
    absent = [tool for tool in ("ip", "tc") if shaping.find(tool) is None]
    if absent:
        hint = "apt-get install iproute2, or the package of that name elsewhere"
        raise OrchError(f"--on emulate needs iproute2; there is no {' and no '.join(absent)}", code="E730", hint=hint)
    if len(nodes) > _MOST_NODES:
        raise OrchError(f"--on emulate makes at most {_MOST_NODES} nodes; the cluster has {len(nodes)}", code="E730")
    _refuse_discipline("tbf", "a rate (bandwidth, egress, ingress)", "tbf rate 1mbit burst 20k latency 50ms")
    if any(node.delay_s for node in nodes):
        _refuse_discipline("netem", "delay", "netem delay 1ms")
    if any(node.loss for node in nodes):
        refuse_loss()
    if any(node.speed != nodes[0].speed for node in nodes) and not _can_limit_cpu():
        text = "speed: this machine cannot limit a node's CPU: no cpu control group can be made"
        raise OrchError(
            f"--on emulate cannot give nodes a different {text}", code="E731", hint="drop speed, or simulate"
        )


def refuse_loss() -> None:
    """Raise OrchError E731 where this machine cannot lose packets of an emulated link."""
    _refuse_discipline("netem", "loss", "netem loss 1%")


def refuse_slow() -> None:
    """Raise OrchError E731 where this machine cannot hold a node's CPU back while it runs."""
    if not _can_limit_cpu():
        text = "--on emulate cannot slow a node down: no cpu control group can be made on this machine"
        raise OrchError(text, code="E731", hint="remove that fault, or simulate")


def _capabilities() -> int:
    with contextlib.suppress(OSError, ValueError), open("/proc/self/status", encoding="utf-8") as file:
        for line in file:
            if line.startswith("CapEff:"):
                return int(line.split()[1], 16)
    return 0


def _refuse_discipline(name: str, field: str, example: str) -> None:
    """Try a queueing discipline in a namespace that ends with the process that made it."""
    code = "import ctypes, os, sys; ctypes.CDLL(None).unshare(0x40000000) and sys.exit(1); os.execvp(sys.argv[1], sys.argv[1:])"
    command = [shaping.find("tc") or "tc", "qdisc", "add", "dev", "lo", "root", *example.split()]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, *command], capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode:
        reason = done.stderr.strip().splitlines()[:1] or ["no network namespace can be made"]
        text = f"--on emulate cannot give a link {field}: this kernel has no {name} ({reason[0]})"
        raise OrchError(text, code="E731", hint=f"drop it, or load the module sch_{name}")


def _can_limit_cpu() -> bool:
    roots = cpu_roots()
    return bool(roots) and os.access(roots[0], os.W_OK)


class Network:
    """Makes the network of `nodes` under the name of `cluster`; RunError where the kernel refuses.

    Half a network is left to its owner to remove, who knows it by name.
    """

    def __init__(self, cluster: str, nodes: Sequence[Node]) -> None:
        self.cluster = cluster
        self.address, self.addresses = "", [""] * len(nodes)
        with _one_at_a_time():
            self._subnet = _free_subnet()
            hosts = self._subnet.hosts()
            self.address, self.addresses = str(next(hosts)), [str(next(hosts)) for _ in nodes]
            run("ip", lines=[*self._bridge(), *(line for k in range(len(nodes)) for line in self._cable(k))])
        for number, node in enumerate(nodes):
            self._inside(number)
            self._shape(number, node)
        self._limit(cpu_limits(nodes))
        self.shaping = shaping_of(cluster, nodes)

    def group(self, node: int) -> str:
        """Return the path of the CPU group a node starts in, "" where there is none."""
        for group in (shaping.cpu_group(self.cluster, node), shaping.cpu_group(self.cluster)):
            if group is not None and os.path.isdir(group):
                return group
        return ""

    def _bridge(self) -> list[str]:
        return [
            f"link add name {self.cluster} mtu {MTU} type bridge",
            f"address add {self.address}/{self._subnet.prefixlen} dev {self.cluster}",
            f"link set {self.cluster} up",
        ]

    def _cable(self, node: int) -> list[str]:
        end, inside = host_end(self.cluster, node), namespace(self.cluster, node)
        return [
            f"netns add {inside}",
            f"link add {end} mtu {MTU} type veth peer name {DEVICE} mtu {MTU} netns {inside}",
            f"link set {end} master {self.cluster}",
            f"link set {end} up",
        ]

    def _inside(self, node: int) -> None:
        lines = [
            "link set lo up",
            f"address add {self.addresses[node]}/{self._subnet.prefixlen} dev {DEVICE}",
            f"link set {DEVICE} up",
        ]
        run("ip", "-n", namespace(self.cluster, node), lines=lines)

    def _shape(self, number: int, node: Node) -> None:
        inside = namespace(self.cluster, number)
        lines = []
        parent = "root"
        if node.delay_s or node.loss:
            lines.append(f"qdisc add dev {DEVICE} root handle 1: netem {netem(node)}")
            parent = "parent 1:1"
        lines.append(f"qdisc add dev {DEVICE} {parent} handle 10: {bucket_of(node.egress_bytes_per_s)}")
        run("tc", "-n", inside, lines=lines)
        end = host_end(self.cluster, number)
        run("tc", lines=[f"qdisc add dev {end} root handle 10: {bucket_of(node.ingress_bytes_per_s)}"])

    def _limit(self, limits: Sequence[float | None]) -> None:
        """Make the CPU group of all nodes, where there can be any, and one for each node that is held back."""
        shared = shaping.cpu_group(self.cluster)
        with contextlib.suppress(OSError):
            if shared is not None:
                shaping.make_cpu_group(shared)
        for node, cores in enumerate(limits):
            if cores is not None:
                shaping.limit_cpu(self.cluster, node, cores)


def shaping_of(cluster: str, nodes: Sequence[Node]) -> Shaping:
    """Return the handles of a cluster made of `nodes`."""
    delayed = any(node.delay_s or node.loss for node in nodes)
    return Shaping(cluster, share_cores(len(nodes)), cpu_limits(nodes), delayed)


def reset(cluster: str, nodes: Sequence[Node]) -> None:
    """Give every link and every node what it began with again, whatever a run has changed and left."""
    handles = shaping_of(cluster, nodes)
    for number, node in enumerate(nodes):
        handles.restore(number)
        handles.set_link(number, node)
        if shaping.cpu_group(cluster, number) is not None:
            handles.slow(number, 1.0)


def share_cores(num_nodes: int) -> float:
    """Return how much of the machine's CPU each of so many equal nodes has."""
    return len(os.sched_getaffinity(0)) / num_nodes


def cpu_limits(nodes: Sequence[Node]) -> tuple[float | None, ...]:
    """Return the CPU limit of every node in cores: none where all are alike, else each one's part of its share.

    All are limited then: a node that is held to half of what the others happen to leave it would be slow by no known
    factor. The fastest have their whole share.
    """
    fastest = max(node.speed for node in nodes)
    if all(node.speed == fastest for node in nodes):
        return (None,) * len(nodes)
    return tuple(share_cores(len(nodes)) * node.speed / fastest for node in nodes)


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Let nobody else choose a subnet until ours can be seen."""
    descriptor = os.open(os.path.join(ROOT, ".orch-emulate.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _free_subnet() -> ipaddress.IPv4Network:
    """Return a /24 of 10.0.0.0/8 that this machine has no route to but its default one. RunError: none is free."""
    taken = []
    with open("/proc/net/route", encoding="ascii") as file:
        for line in file.readlines()[1:]:
            destination, mask = (int.from_bytes(bytes.fromhex(line.split()[i]), "little") for i in (1, 7))
            if mask:
                taken.append(ipaddress.ip_network((destination, mask.bit_count())))
    for net in ipaddress.ip_network("10.213.0.0/16").subnets(new_prefix=24):
        if isinstance(net, ipaddress.IPv4Network) and not any(net.overlaps(other) for other in taken):
            return net
    raise RunError("no subnet of 10.213.0.0/16 is free for the emulated network", code="E732")
