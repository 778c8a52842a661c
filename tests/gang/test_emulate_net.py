"""The network: shaped as its nodes say, apart from everything else, refused where it cannot be."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from orch.cluster.node import Node
from orch.errors import OrchError
from orch.gang import emulate_net, shaping
from orch.gang.emulate_net import cpu_limits, refuse
from tests.gang.emulation import can_emulate, network, refusal

PLAIN = Node(12.5e6, 12.5e6)


def test_an_ordinary_user_is_told_in_one_line() -> None:
    code = "import os\nfrom orch.cluster.node import Node\nfrom orch.errors import OrchError\n"
    code += "from orch.gang.emulate_net import refuse\n"  # before: an ordinary user may not be able to read all this
    code += "if os.getuid() == 0: os.setuid(65534)\n"
    code += "try: refuse([Node(1e6, 1e6)])\nexcept OrchError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    assert line == (
        "--on emulate makes network namespaces, which needs root; this is an ordinary user; "
        "orch plan needs none of it; --on local runs without a network [E730]"
    )


def test_root_without_capabilities_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(emulate_net, "_capabilities", lambda: 1 << 12)
    with pytest.raises(OrchError, match="needs root; this root has no CAP_SYS_ADMIN") as caught:
        refuse([PLAIN])
    assert caught.value.code == "E730"


def test_other_systems_and_absent_tools_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(emulate_net, "_capabilities", lambda: ~0)
    monkeypatch.setattr(shaping, "find", lambda tool: None)
    with pytest.raises(OrchError, match="needs iproute2; there is no ip and no tc"):
        refuse([PLAIN])
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(OrchError, match="needs Linux; this is darwin"):
        refuse([PLAIN])


@can_emulate
@pytest.mark.parametrize(("field", "node"), [("delay", Node(delay_s=1e-3)), ("loss", Node(loss=0.01))])
def test_a_kernel_without_netem_refuses_exactly_that_field(field: str, node: Node) -> None:
    error = refusal([PLAIN, node])
    if error is None:
        with network([PLAIN, node]) as net:
            shown = subprocess.run(
                ["tc", "-n", f"{net.cluster}-1", "qdisc"], capture_output=True, text=True, check=True
            )
            assert field in shown.stdout
    else:
        assert error.code == "E731"
        assert f"cannot give a link {field}: this kernel has no netem" in error.message
        assert refusal([PLAIN]) is None


@can_emulate
def test_speeds_are_refused_where_no_cpu_group_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulate_net, "cpu_roots", lambda: [])
    assert refusal([PLAIN, PLAIN]) is None
    error = refusal([PLAIN, Node(12.5e6, 12.5e6, speed=0.5)])
    assert error is not None
    assert error.code == "E731"
    assert "cannot give nodes a different speed" in error.message


def test_cpu_is_limited_only_where_speeds_differ() -> None:
    cores = len(os.sched_getaffinity(0))
    assert cpu_limits([PLAIN] * 3) == (None, None, None)
    assert cpu_limits([Node(speed=2.0)] * 2) == (None, None)
    assert cpu_limits([Node(), Node(speed=0.5)]) == (cores / 2, cores / 4)
    assert cpu_limits([Node(speed=2.0), Node()]) == (cores / 2, cores / 4)


@can_emulate
def test_each_end_of_each_cable_is_shaped_as_its_node_says() -> None:
    with network([Node(12.5e6, 25e6), Node(1.25e6, None)]) as net:
        assert net.addresses[0].rpartition(".")[0] == net.address.rpartition(".")[0]
        for node, sends, receives in ((0, "100Mbit", "200Mbit"), (1, "10Mbit", "1Tbit")):
            inside = ["tc", "-n", f"{net.cluster}-{node}", "qdisc", "show", "dev", "eth0"]
            outside = ["tc", "qdisc", "show", "dev", f"{net.cluster}-{node}"]
            for command, rate in ((inside, sends), (outside, receives)):
                shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                assert f"tbf 10: root refcnt 3 rate {rate} " in shown.replace("1000Gbit", "1Tbit")


@can_emulate
def test_two_networks_have_different_addresses() -> None:
    with network([PLAIN]) as one, network([PLAIN]) as other:
        assert not {one.address, *one.addresses} & {other.address, *other.addresses}
