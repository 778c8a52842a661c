"""The fork server: exact exits, and no worker outlives it or its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orch.errors import RunError
from orch.gang import end_all, make_gang
from orch.gang.fork_server import ForkServer
from tests.gang import functions
from tests.gang.test_janitor import becomes_true

DRIVER = """
from orch.gang import fork_server, make_gang
from tests.gang import functions
fork_server.PRELOAD = ('torch',)
with make_gang("processes", 2) as gang:
    pids = [answer[3] for answer in gang.call(functions.who)]
    gang.call(functions.compute, 60.0, on_event=lambda rank, event: print(*pids, flush=True))
"""


def leave(status: int) -> None:
    os._exit(status)


def have_a_child(descriptor: int) -> None:
    child = subprocess.Popen(["sleep", "3600"])
    os.write(descriptor, str(child.pid).encode())
    os._exit(0)


def wait_for(server: ForkServer, pid: int) -> int | None:
    becomes_true(lambda: server.exit_of(pid) is not None)
    return server.exit_of(pid)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_exits_are_exact_and_children_of_workers_end_too() -> None:
    server = ForkServer(preload=())
    try:
        assert [wait_for(server, server.fork(leave, status, [])) for status in (0, 3)] == [0, 3]
        sleeper = server.fork(time.sleep, 3600, [])
        assert server.exit_of(sleeper) is None
        server.kill(sleeper)
        assert wait_for(server, sleeper) == -9
        read, write = os.pipe()
        parent = server.fork(have_a_child_of, None, [write])
        grandchild = int(os.read(read, 32))
        assert wait_for(server, parent) == 0
        assert becomes_true(lambda: not alive(grandchild))
        os.close(read)
        os.close(write)
    finally:
        server.close()


def have_a_child_of(nothing: None, descriptor: int) -> None:
    have_a_child(descriptor)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_driver_leaves_no_worker(number: signal.Signals) -> None:
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert driver.stdout is not None
    pids = [int(pid) for pid in driver.stdout.readline().split()]
    assert len(pids) == 2
    assert all(alive(pid) for pid in pids)
    if number == signal.SIGINT:
        os.killpg(driver.pid, number)
    else:
        os.kill(driver.pid, number)
    driver.communicate(timeout=20)
    assert becomes_true(lambda: not any(alive(pid) for pid in pids), within_s=5)


def test_a_dead_server_is_noticed_without_the_lock_that_ctrl_c_can_leave_taken() -> None:
    server = ForkServer(preload=())
    try:
        sleeper = server.fork(time.sleep, 3600, [])
        with server._process._waitpid_lock:  # type: ignore[attr-defined]
            os.kill(server.pid, signal.SIGKILL)
            assert wait_for(server, sleeper) == -signal.SIGKILL
    finally:
        server.close()
    assert becomes_true(lambda: not alive(sleeper))


def test_a_killed_server_ends_its_workers_and_the_next_gang_gets_a_new_one() -> None:
    end_all()
    with make_gang("processes", 2) as gang:
        (pid, _) = [answer[3] for answer in gang.call(functions.who)]
        server = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(server, signal.SIGKILL)
        with pytest.raises(RunError, match=r"^rank [01] of 2 died.* \(signal 9\)"):
            gang.call(functions.compute, 60.0)
    with make_gang("processes", 2) as gang:
        assert gang.call(functions.all_reduce) == [3.0, 3.0]
