"""What can be done to the nodes of an emulated cluster while it runs: rates, cuts, slow and dead nodes.

`Shaping` is for the driver, which is the machine that holds all nodes: `gang.shaping` is one for a gang made with
`--on emulate`, and None for any other. It keeps nothing but names, so that `Shaping(cluster)` of any process with the
rights is as good as another, and calls from several threads or processes are safe as long as they are about different
nodes. Every call takes about 10 ms, returns when the kernel has taken it on, and raises RunError E732 when it has not.
Nodes are numbered from 0; rank r is on node r // devices_per_node.

    shaping.set_rate(2, egress=12.5e6)          # bytes a second; the other direction stays as it is
    shaping.set_link(2, Node(25e6, 25e6, loss=0.01))   # rates, delay and loss as those of such a node
    shaping.cut(2); ...; shaping.restore(2)     # packets from and to the node are lost; its connections stay open
    shaping.slow(2, 4.0)                        # a quarter of its CPU; slow(2, 1.0) takes it back
    shaping.kill(2)                             # SIGKILL to every process of the node
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from orch.cluster.node import Node
from orch.errors import RunError
from orch.gang.emulate_leftovers import NAMESPACES, cpu_roots, parts

DEVICE = "eth0"  # of a node, inside its namespace
MTU = 9000
# A bucket this long lets bursts through at the speed of memory; shorter ones cost CPU. At least two packets.
_BURST_S = 1e-3
_BURST_BYTES = 2 * (MTU + 18)
_QUEUE_S = 0.05  # a packet that would wait longer is dropped, as a switch with a buffer would
_MOST_BURST_BYTES, _MOST_QUEUE_BYTES = 1 << 22, 1 << 28  # what the kernel can count
UNSHAPED = 1.25e11  # a terabit: no limit that anything here reaches
_PERIOD_S, _SMALLEST_QUOTA_S = 10e-3, 1e-3  # the kernel takes no quota below 1 ms
_WEIGHT = 16  # usual groups
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def namespace(cluster: str, node: int) -> str:
    """Return the name of a node's network namespace."""
    return f"{cluster}-{node}"


def host_end(cluster: str, node: int) -> str:
    """Return the name of the bridge's end of a node's cable."""
    return f"{cluster}-{node}"


def cpu_group(cluster: str, node: int | None = None) -> str | None:
    """Return the directory of a node's own CPU group, or of the one that all nodes share which are not held back; None
    where the machine has no place for any.

    A group a node would be no emulation of nodes: the kernel lets groups take turns, whole slices each, so that a thread
    that a message wakes waits for the other nodes of its core. Beside compute a 1 KiB all-reduce of four nodes on two
    cores took 92 ms so, and 13 to 19 ms in one group; alone 16 and 3.7 ms. In no group at all the kernel makes one of
    every session, with the same effect (98 ms).
    """
    roots = cpu_roots()
    return os.path.join(roots[0], cluster if node is None else f"{cluster}-{node}") if roots else None


@dataclass(frozen=True, slots=True)
class Shaping:
    """The handles of one emulated cluster.

    `share_cores`: the CPU of a node that is neither slow nor fast. `limits_cores`: what each node is held to from the
    start, None: nothing. `delayed`: the kernel delays packets or loses some of them.
    """

    cluster: str
    share_cores: float = 1.0
    limits_cores: tuple[float | None, ...] = ()
    delayed: bool = False

    def set_rate(self, node: int, egress: float | None = None, ingress: float | None = None) -> None:
        """Let `node` send `egress` and receive `ingress` bytes a second at most; None leaves a direction as it is."""
        if egress is not None:
            parent = "parent 1:1" if self.delayed else "root"
            self._tc(f"qdisc replace dev {DEVICE} {parent} handle 10: {_bucket(egress)}", namespace(self.cluster, node))
        if ingress is not None:
            self._tc(f"qdisc replace dev {host_end(self.cluster, node)} root handle 10: {_bucket(ingress)}")

    def set_link(self, number: int, node: Node) -> None:
        """Give the link of node `number` the rates, the delay and the loss of `node`."""
        inside = namespace(self.cluster, number)
        if self.delayed or node.loss:
            self._tc(f"qdisc replace dev {DEVICE} root handle 1: netem {netem(node)}", inside)
            # A handle of its own where the bucket alone was the root: one that exists would be moved, not changed.
            handle = "10:" if self.delayed else "20:"
            self._tc(
                f"qdisc replace dev {DEVICE} parent 1:1 handle {handle} {bucket_of(node.egress_bytes_per_s)}", inside
            )
        else:
            self._tc(f"qdisc replace dev {DEVICE} root handle 10: {bucket_of(node.egress_bytes_per_s)}", inside)
        end = host_end(self.cluster, number)
        self._tc(f"qdisc replace dev {end} root handle 10: {bucket_of(node.ingress_bytes_per_s)}")

    def cut(self, node: int) -> None:
        """Pull the cable of `node` out: what it sends and what is sent to it is lost until `restore`."""
        run("ip", "link", "set", host_end(self.cluster, node), "down")

    def restore(self, node: int) -> None:
        """Put the cable of `node` back."""
        run("ip", "link", "set", host_end(self.cluster, node), "up")

    def slow(self, node: int, factor: float) -> None:
        """Give `node` 1/`factor` of the CPU it has by the cluster file; 1.0 is how it began."""
        given = self.limits_cores[node] if node < len(self.limits_cores) else None
        limit_cpu(self.cluster, node, given if factor == 1.0 else (given or self.share_cores) / factor)

    def kill(self, node: int) -> None:
        """End every process of `node` at once, as a power cut would."""
        for pid in processes(self.cluster, node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _tc(self, command: str, inside: str = "") -> None:
        run("tc", *(["-n", inside] if inside else []), *command.split())


def limit_cpu(cluster: str, node: int, cores: float | None) -> None:
    """Hold all processes of a node together to `cores` of CPU time a second, in a group of its own; None: to no limit, in
    the group of all.
    """
    group, shared = cpu_group(cluster, node), cpu_group(cluster)
    if group is None or shared is None:
        raise RunError("this machine can limit no node's CPU: it has no cpu control group", code="E732")
    if cores is None and not os.path.isdir(group):
        return
    try:
        make_cpu_group(group)
        _set_quota(group, cores)
        _move(cluster, node, shared if cores is None else group)
    except OSError as error:
        raise RunError(f"the CPU of node {node} cannot be limited: {error}", code="E732") from error


def make_cpu_group(group: str) -> None:
    """Make a CPU group, if it is not there, whose processes come before whatever else the machine does: that is no part of
    the cluster. OSError: the kernel refused.
    """
    os.makedirs(group, exist_ok=True)
    old = os.path.exists(f"{group}/cpu.shares")
    _write(f"{group}/{'cpu.shares' if old else 'cpu.weight'}", str(_WEIGHT * (1024 if old else 100)))


def _set_quota(group: str, cores: float | None) -> None:
    period_s = max(_PERIOD_S, _SMALLEST_QUOTA_S / cores) if cores else _PERIOD_S
    period_us = min(1_000_000, round(period_s * 1e6))
    quota_us = max(1000, round(cores * period_us)) if cores else None
    if os.path.exists(f"{group}/cpu.cfs_quota_us"):
        _write(f"{group}/cpu.cfs_quota_us", "-1")  # a period is refused that the present quota does not fit
        _write(f"{group}/cpu.cfs_period_us", str(period_us))
        _write(f"{group}/cpu.cfs_quota_us", str(quota_us or -1))
    else:
        _write(f"{group}/cpu.max", f"{quota_us or 'max'} {period_us}")


def _move(cluster: str, node: int, group: str) -> None:
    """Move all processes of a node into a CPU group, with what they start meanwhile."""
    moved: set[int] = set()
    while left := set(processes(cluster, node)) - moved:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                _write(f"{group}/cgroup.procs", str(pid))
        moved |= left


def processes(cluster: str, node: int) -> list[int]:
    """Return the processes of a cluster that are in the network namespace of a node."""
    try:
        wanted = os.stat(os.path.join(NAMESPACES, namespace(cluster, node))).st_ino
    except OSError:
        return []
    found = []
    for thing in parts(cluster):
        if thing.kind == "process":
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{thing.name}/ns/net").st_ino == wanted:
                    found.append(int(thing.name))
    return found


def bucket_of(rate: float | None) -> str:
    """Return the queueing discipline that holds a device to `rate` bytes a second; None: to no limit."""
    return _bucket(UNSHAPED if rate is None else rate)


def netem(node: Node) -> str:
    """Return what netem is told of a node's delay and loss."""
    delay = f" delay {node.delay_s * 1e6:.0f}us" if node.delay_s else ""
    loss = f" loss {node.loss * 100:.6f}%" if node.loss else ""
    return f"limit 100000{delay}{loss}"


def _bucket(rate: float) -> str:
    burst = min(max(_BURST_BYTES, round(rate * _BURST_S)), _MOST_BURST_BYTES)
    queue = min(max(4 * MTU, round(rate * _QUEUE_S)), _MOST_QUEUE_BYTES)
    return f"tbf rate {max(1, round(rate))}bps burst {burst} limit {burst + queue}"


def find(tool: str) -> str | None:
    """Return the path of a tool of iproute2, which ordinary users do not have on their PATH; None: not installed."""
    return shutil.which(tool, path=_PATH)


def run(tool: str, *arguments: str, lines: Sequence[str] = ()) -> None:
    """Run `ip` or `tc`, with `lines` as a batch. RunError E732 with what it said."""
    batch = ["-batch", "-"] if lines else []
    try:
        done = subprocess.run(
            [find(tool) or tool, *arguments, *batch],
            input="\n".join(lines),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise RunError(f"{tool} could not be run: {error}", code="E732") from error
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        reason = said[0].strip() if said else f"exit code {done.returncode}"
        raise RunError(f"the kernel refused {tool} {' '.join(arguments) or lines[0]}: {reason}", code="E732")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
