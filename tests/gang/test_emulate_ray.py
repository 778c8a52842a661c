"""Emulated nodes: real Ray nodes apart from each other, at the file's rates, and nothing of them left, whoever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orch.cluster.node import Node
from orch.errors import OrchError, RunError
from orch.gang import emulate_leftovers, emulate_ray, end_all, make_gang
from orch.gang.emulate_leftovers import leftovers, parts
from orch.gang.gang import WorkersGang
from orch.gang.shaping import host_end
from tests.gang import functions
from tests.gang.emulation import can_emulate
from tests.gang.test_janitor import becomes_true

pytestmark = can_emulate
NODES = [Node(25e6, 25e6), Node(25e6, 2.5e6)]
# The driver says where it is; the test then kills it there.
DRIVER = """
import sys
from orch.cluster.node import Node
from orch.gang import emulate_ray, fork_server, make_gang
from tests.gang import functions

fork_server.PRELOAD = ()
phase = sys.argv[1]
real = emulate_ray._start

def start(cluster, *args):
    print(cluster, flush=True)
    if phase == "starting":
        sys.stdin.read()
    return real(cluster, *args)

emulate_ray._start = start
with make_gang("emulate", 2, nodes=[Node(1e7, 1e7)] * 2, per_node=1) as gang:
    print("running", flush=True)
    gang.call(functions.compute, 60.0) if phase == "running" else sys.stdin.read()
"""


@pytest.fixture
def gang() -> Iterator[WorkersGang]:
    """Four workers on two emulated nodes, gone afterwards with everything they stood on."""
    end_all()
    with make_gang("emulate", 4, nodes=NODES, per_node=2) as made:
        assert isinstance(made, WorkersGang)
        yield made
    end_all()
    assert becomes_true(lambda: not parts(cluster_of(made)))


def best(gang: WorkersGang) -> float:
    """Return the seconds of an all-reduce of 1 MB: of three, as the machine may be busy, but no link is ever too fast."""
    return min(max(gang.call(functions.timed_all_reduce, 1_000_000)) for _ in range(3))


def cluster_of(gang: WorkersGang) -> str:
    assert gang.shaping is not None
    return gang.shaping.cluster


def test_ranks_sit_on_their_nodes_meet_over_the_shaped_link_and_leave_nothing(gang: WorkersGang) -> None:
    cluster = cluster_of(gang)
    assert gang.kind == "emulate"
    assert gang.notes[0] == f"emulated nodes of {cluster}, made for this run"
    homes = gang.call(functions.network_of)
    assert homes[0] == homes[1] != homes[2] == homes[3]
    assert os.readlink("/proc/self/ns/net") not in homes
    # The first node receives at 25 MB/s and the second at 2.5: 2 * 3/4 of 1 MB pass each link, in each direction.
    assert best(gang) == pytest.approx(0.6, rel=0.35)
    assert gang.shaping is not None
    gang.shaping.set_rate(1, ingress=25e6)
    assert best(gang) < 0.25
    gang.shaping.kill(1)
    with pytest.raises(RunError, match=r"rank [23] of 4 died"):
        gang.call(functions.timed_all_reduce, 1000)


def test_a_kept_cluster_is_borrowed_reset_and_given_back_and_ended_only_when_free() -> None:
    end_all()
    cluster = emulate_ray.keep("warm", NODES)
    try:
        assert emulate_ray.kept() == {cluster: "warm"}
        emulate_ray.shaping_of(cluster, NODES).set_rate(0, ingress=1e3)
        session = emulate_ray.EmulatedRay(NODES)
        try:
            assert (session.cluster, session.problem()) == (cluster, "")
            shown = subprocess.check_output(["tc", "qdisc", "show", "dev", host_end(cluster, 0)], text=True)
            assert "rate 200Mbit" in shown
            with pytest.raises(OrchError, match="emulated cluster warm is in use by a run"):
                emulate_ray.end(cluster, "warm")
        finally:
            session.close()
        assert {thing.kind for thing in parts(cluster)} >= {"process", "namespace", "interface", "directory"}
        assert leftovers() == [thing for thing in leftovers() if thing.cluster != cluster]
        emulate_ray.shaping_of(cluster, NODES).kill(1)
        assert becomes_true(lambda: _refused("node 1 of emulated cluster warm is dead"))
    finally:
        emulate_ray.end(cluster, "warm")
    assert parts(cluster) == []
    assert emulate_ray.kept() == {}


def _refused(text: str) -> bool:
    try:
        emulate_ray.EmulatedRay(NODES).close()
    except OrchError as error:
        return text in error.message
    return False


def test_a_start_that_fails_leaves_nothing_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(emulate_leftovers.clusters())
    monkeypatch.setattr(emulate_ray.Start, "__init__", _no_namespace(emulate_ray.Start.__init__))
    with pytest.raises(RunError, match=r"did not start: .*No such file or directory: '/run/netns/nowhere'") as caught:
        emulate_ray.make(NODES)
    assert caught.value.code == "E734"
    assert set(emulate_leftovers.clusters()) == before
    assert [thing for thing in leftovers() if thing.cluster not in before] == []


def _no_namespace(init):  # type: ignore[no-untyped-def]
    def start(self, address, directory, namespace="", group="", resource=""):  # type: ignore[no-untyped-def]
        init(self, address, directory, namespace and "/run/netns/nowhere", group, resource)

    return start


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "number"),
    [
        ("starting", signal.SIGKILL),
        ("running", signal.SIGKILL),
        ("running", signal.SIGTERM),
        ("running", signal.SIGINT),
    ],
)
def test_a_killed_driver_leaves_nothing(phase: str, number: signal.Signals, tmp_path: Path) -> None:
    with (tmp_path / "stderr").open("w") as errors:
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, phase],
            env={**os.environ, "PYTHONPATH": os.getcwd()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        assert driver.stdout is not None
        cluster = driver.stdout.readline().strip()
        assert parts(cluster), (tmp_path / "stderr").read_text()
        if phase == "running":
            assert driver.stdout.readline() == "running\n", (tmp_path / "stderr").read_text()
        os.kill(driver.pid, number)
        assert driver.wait(20) in ((1, 130, -number) if number == signal.SIGINT else (-number,))
        driver.communicate()
    assert becomes_true(lambda: not parts(cluster)), parts(cluster)
