"""Shaping: a change is in the kernel when the call returns, and traffic obeys it."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from orch.cluster.node import Node
from orch.errors import RunError
from orch.gang import emulate_leftovers
from orch.gang.emulate_leftovers import NAMESPACES, TAG
from orch.gang.emulate_net import Network
from orch.gang.shaping import Shaping, cpu_group, namespace, processes
from tests.gang.emulation import can_emulate, network
from tests.gang.test_janitor import becomes_true

_NEW_NETWORK = 0x40000000


def inside(net: Network, node: int, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """Return a socket that lives in the namespace of a node: a socket keeps the namespace its thread was in."""
    made: list[socket.socket] = []

    def make() -> None:
        with open(f"{NAMESPACES}/{namespace(net.cluster, node)}", "rb") as file:
            assert ctypes.CDLL(None).setns(file.fileno(), _NEW_NETWORK) == 0
        made.append(socket.socket(socket.AF_INET, kind))

    thread = Thread(target=make)
    thread.start()
    thread.join()
    return made[0]


def seconds(net: Network, sender: int, receiver: int, nbytes: int) -> float:
    """Return how long it takes to send `nbytes`: the best of three, as the machine may be busy, but no link is too fast."""
    return min(once(net, sender, receiver, nbytes) for _ in range(3))


def once(net: Network, sender: int, receiver: int, nbytes: int) -> float:
    """Send `nbytes` over TCP and return how long it took until all had arrived."""
    with inside(net, receiver) as listener, inside(net, sender) as client:
        listener.bind((net.addresses[receiver], 0))
        listener.listen()
        client.connect(listener.getsockname())
        server, _ = listener.accept()
        sending = Thread(target=client.sendall, args=(bytes(nbytes),))
        begin = time.perf_counter()
        sending.start()
        left = nbytes
        with server:
            while left:
                left -= len(server.recv(1 << 20))
        sending.join()
        return time.perf_counter() - begin


def sleeper(net: Network, node: int) -> subprocess.Popen[bytes]:
    """Start a process of the cluster in the namespace of a node."""
    code = f"import ctypes, time; f = open('{NAMESPACES}/{namespace(net.cluster, node)}', 'rb')\n"
    code += f"assert ctypes.CDLL(None).setns(f.fileno(), {_NEW_NETWORK}) == 0; time.sleep(3600)"
    return subprocess.Popen([sys.executable, "-c", code], env={**os.environ, TAG: net.cluster})


@can_emulate
def test_traffic_obeys_each_direction_and_a_new_rate_at_once() -> None:
    nbytes = 1_000_000
    with network([Node(10e6, 10e6), Node(10e6, 2.5e6)]) as net:
        assert seconds(net, 1, 0, nbytes) == pytest.approx(0.1, rel=0.3)  # 10 MB/s out of 1 and into 0
        assert seconds(net, 0, 1, nbytes) == pytest.approx(0.4, rel=0.3)  # 2.5 MB/s into 1
        net.shaping.set_rate(1, ingress=10e6)
        net.shaping.set_rate(0, egress=5e6)
        assert seconds(net, 0, 1, nbytes) == pytest.approx(0.2, rel=0.3)
        assert seconds(net, 1, 0, nbytes) == pytest.approx(0.1, rel=0.3)


@can_emulate
def test_a_whole_link_is_set_and_set_back() -> None:
    with network([Node(10e6, 10e6)] * 2) as net:
        net.shaping.set_link(1, Node(2.5e6, None))
        assert seconds(net, 1, 0, 500_000) == pytest.approx(0.2, rel=0.3)
        net.shaping.set_link(1, Node(10e6, 10e6))
        assert seconds(net, 1, 0, 500_000) == pytest.approx(0.05, rel=0.4)


def test_loss_stands_before_the_bucket_and_goes_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("orch.gang.shaping.run", lambda *words: said.append(" ".join(words)))
    lossy, usual = Node(10e6, 10e6, delay_s=1e-3, loss=0.02), Node(10e6, 10e6, delay_s=1e-3)
    plain = Shaping("orch-000000")
    plain.set_link(1, replace(lossy, delay_s=0.0))
    plain.set_link(1, replace(usual, delay_s=0.0))
    far = Shaping("orch-000000", delayed=True)
    far.set_link(1, lossy)
    far.set_link(1, usual)
    inside = [line.removeprefix("tc -n orch-000000-1 qdisc replace dev eth0 ") for line in said if "-n" in line]
    assert [line.partition(" tbf")[0] for line in inside] == [
        "root handle 1: netem limit 100000 loss 2.000000%", "parent 1:1 handle 20:",
        "root handle 10:",
        "root handle 1: netem limit 100000 delay 1000us loss 2.000000%", "parent 1:1 handle 10:",
        "root handle 1: netem limit 100000 delay 1000us", "parent 1:1 handle 10:",
    ]  # fmt: skip


@can_emulate
def test_a_cut_loses_what_is_sent_and_nothing_more_once_it_is_restored() -> None:
    with (
        network([Node(10e6, 10e6)] * 2) as net,
        inside(net, 0, socket.SOCK_DGRAM) as to,
        inside(net, 1, socket.SOCK_DGRAM) as sender,
    ):
        to.bind((net.addresses[0], 0))
        sender.sendto(b"before", to.getsockname())
        assert _came(to) == b"before"
        net.shaping.cut(0)
        sender.sendto(b"during", to.getsockname())
        assert _came(to) == b""
        net.shaping.restore(0)
        assert becomes_true(lambda: sender.sendto(b"after", to.getsockname()) == 5 and _came(to) == b"after")


def _came(to: socket.socket) -> bytes:
    to.settimeout(0.2)
    try:
        return to.recv(10)
    except OSError:
        return b""


def members(group: str | None) -> list[int]:
    """Return the processes of a CPU group."""
    return [int(pid) for pid in Path(group or "", "cgroup.procs").read_text().split()]


@can_emulate
def test_a_slow_node_has_the_less_cpu_and_gets_it_back() -> None:
    with network([Node(), Node()]) as net:
        group = cpu_group(net.cluster, 1)
        if group is None:
            with pytest.raises(RunError, match="this machine can limit no node's CPU"):
                net.shaping.slow(1, 2.0)
            return
        shared = cpu_group(net.cluster)
        assert net.group(1) == shared  # one group for all: in groups of their own nodes would wait for one another
        weight = next(path for name in ("cpu.shares", "cpu.weight") if (path := Path(shared or "", name)).exists())
        assert int(weight.read_text()) in (16 * 1024, 16 * 100)
        with sleeper(net, 1) as moved:
            assert becomes_true(lambda: processes(net.cluster, 1) == [moved.pid])
            net.shaping.slow(1, 2.0)
            assert members(group) == [moved.pid]
            net.shaping.slow(1, 1.0)
            assert (members(group), members(shared)) == ([], [moved.pid])
            moved.kill()
        code = "import sys, time; open(sys.argv[1] + '/cgroup.procs', 'w').write('0')\n"
        code += "end = time.monotonic() + 0.5\nwhile time.monotonic() < end: pass\nprint(time.process_time())"
        share = net.shaping.share_cores
        net.shaping.slow(1, 5.0 * share)  # a fifth of a core
        limited = subprocess.run([sys.executable, "-I", "-c", code, group], capture_output=True, text=True, check=True)
        assert float(limited.stdout) < 0.2
        net.shaping.slow(1, 1.0)
        quota = Path(group, "cpu.cfs_quota_us")
        shown = quota.read_text() if quota.exists() else Path(group, "cpu.max").read_text()
        assert shown.split()[0] in ("-1", "max")


@can_emulate
def test_killing_a_node_ends_its_processes_and_no_others() -> None:
    with network([Node(), Node()]) as net:
        victim, other = sleeper(net, 0), sleeper(net, 1)
        assert becomes_true(lambda: processes(net.cluster, 0) == [victim.pid])
        assert becomes_true(lambda: processes(net.cluster, 1) == [other.pid])
        net.shaping.kill(0)
        assert victim.wait(10) == -9
        assert other.poll() is None
        emulate_leftovers.remove(emulate_leftovers.parts(net.cluster))
        assert other.wait(10) == -9


@can_emulate
def test_what_the_kernel_refuses_is_said_in_one_line() -> None:
    with pytest.raises(RunError, match=r"the kernel refused ip link set orch-000000-7 down: .*orch-000000-7"):
        Shaping("orch-000000").cut(7)
