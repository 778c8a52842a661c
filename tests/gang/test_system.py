"""What the operating system is asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orch.gang import system


def test_an_interrupt_waits_for_the_end_of_the_block_and_a_second_does_not() -> None:
    reached: list[int] = []

    def interrupt(times: int) -> None:
        with system.deferred_interrupt():
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
                reached.append(times)

    with pytest.raises(KeyboardInterrupt):
        interrupt(1)
    assert reached == [1]
    with pytest.raises(KeyboardInterrupt):
        interrupt(3)
    assert reached == [1, 3]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_is_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with system.kept_handler(signal.SIGTERM):
        signal.signal(signal.SIGTERM, lambda number, frame: None)
    assert signal.getsignal(signal.SIGTERM) is before


def test_cpu_time_and_stops_of_a_process() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "print('up', flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        before = system.cpu_seconds(child.pid)
        assert before is not None
        assert not system.is_stopped(child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        assert system.is_stopped(child.pid)
        after = system.cpu_seconds(child.pid)
        assert after is not None
        assert after >= before
    finally:
        child.kill()
        child.wait()
    assert system.cpu_seconds(child.pid) is None


def test_the_work_of_children_counts() -> None:
    child = (
        "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\nprint('busy', flush=True)"
    )
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child + chr(10) + 'input()'!r}])"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    assert parent.stdout is not None
    parent.stdout.readline()
    with_child = system.cpu_seconds(parent.pid)
    own = sum(int(x) for x in Path(f"/proc/{parent.pid}/stat").read_text().rpartition(")")[2].split()[11:13])
    assert with_child is not None
    assert with_child >= own / os.sysconf("SC_CLK_TCK") + 0.25
    parent.communicate(b"\n")


def test_the_title_is_what_ps_shows() -> None:
    code = "from orch.gang.system import set_title; set_title('orch rank 2 of 4'); print('up', flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    assert Path(f"/proc/{child.pid}/cmdline").read_bytes().rstrip(b"\0") == b"orch rank 2 of 4"
    child.communicate(b"\n")


@pytest.mark.parametrize(("status", "text"), [(-9, "signal 9"), (7, "exit code 7"), (0, "exit code 0")])
def test_exits_are_described(status: int, text: str) -> None:
    assert system.describe_exit(status) == text


def test_what_the_kernel_killed_is_counted() -> None:
    assert system.killed_for_memory() >= 0
    assert system.killed_for_memory() == system.killed_for_memory()
