"""Emulated clusters, again and again: twenty times up and down, two at once, and a driver killed at any moment. Long."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orch.cluster.node import Node
from orch.gang import emulate_ray
from orch.gang.emulate_leftovers import clusters, leftovers, parts
from tests.gang.emulation import can_emulate
from tests.gang.test_janitor import becomes_true

pytestmark = [can_emulate, pytest.mark.long]
FOUR = [Node(25e6, 25e6)] * 4
READY_WITHIN_S = 30.0
TIMES = 20
WORK = """
from orch.cluster.node import Node
from orch.gang import emulate_ray, end_all, fork_server, make_gang
from tests.gang import functions

fork_server.PRELOAD = ("torch",)
start = emulate_ray._start
emulate_ray._start = lambda cluster, *args: (print(cluster, flush=True), start(cluster, *args))[1]
with make_gang("emulate", 4, nodes=[Node(25e6, 25e6)] * 4, per_node=1) as gang:
    print(gang.call(functions.all_reduce), flush=True)
end_all()
"""


def driver(log: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORK],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        stdout=subprocess.PIPE,
        stderr=log.open("w"),
        text=True,
        start_new_session=True,
    )


def test_twenty_times_up_and_down_leaves_nothing() -> None:
    before = set(clusters())
    for number in range(TIMES):
        begin = time.monotonic()
        cluster = emulate_ray.keep(f"matrix-{os.getpid()}", FOUR)
        took = time.monotonic() - begin
        emulate_ray.end(cluster, "matrix")
        assert took < READY_WITHIN_S, f"number {number} took {took:.1f} s"
        assert parts(cluster) == []
    assert set(clusters()) <= before
    assert [thing for thing in leftovers() if thing.cluster not in before] == []


def test_two_at_once_do_not_meet(tmp_path: Path) -> None:
    both = [driver(tmp_path / str(number)) for number in range(2)]
    said = [one.communicate(timeout=200)[0].splitlines() for one in both]
    assert [lines[1:] for lines in said] == [["[10.0, 10.0, 10.0, 10.0]"]] * 2
    assert said[0][0] != said[1][0]
    assert [thing for lines in said for thing in parts(lines[0])] == []


@pytest.mark.parametrize("seed", range(6))
def test_a_driver_killed_at_any_moment_leaves_nothing(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    number = chance.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    victim = driver(tmp_path / "log")
    assert victim.stdout is not None
    cluster = victim.stdout.readline().strip()
    try:
        victim.wait(chance.uniform(0.0, 12.0))  # the moment is what is tried: nothing is waited for
    except subprocess.TimeoutExpired:
        victim.send_signal(number)
    victim.communicate(timeout=60)
    assert cluster.startswith("orch-")
    assert becomes_true(lambda: not parts(cluster), within_s=20.0), (number, parts(cluster))
