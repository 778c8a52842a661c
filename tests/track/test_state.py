"""States of runs: the first end stands, and a dead driver is found out."""

import subprocess
import sys
from dataclasses import replace

import pytest

from orch.track import state


@pytest.fixture
def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_state_comes_back(tmp_path):
    first = state.new()
    state.write(tmp_path, first)
    assert state.read(tmp_path) == first
    running = first.to("running")
    state.write(tmp_path, running)
    assert state.read(tmp_path) == running
    assert running.started_s >= first.created_s


def test_the_first_end_stands():
    ended = state.new("running").to("interrupted", "Ctrl-C")
    assert ended.to("done") is ended
    assert ended.to("running") is ended
    assert (ended.status, ended.reason) == ("interrupted", "Ctrl-C")


def test_this_process_lives_and_another_with_its_pid_does_not():
    here = state.Owner.here()
    assert here.alive is True
    assert replace(here, born="1").alive is False
    assert replace(here, boot="0").alive is False
    assert replace(here, host="elsewhere", boot="0").alive is None


def test_a_zombie_is_dead():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = state.Owner.here(process.pid)
    assert owner.alive is True
    process.kill()
    process.stdin.close()
    # Not reaped yet: the pid still exists, the process does not run any more.
    while state._born(process.pid):
        pass
    assert owner.alive is False
    process.wait()


def test_a_dead_driver_is_settled_as_killed_at_the_time_of_its_last_file(tmp_path, dead_pid):
    running = replace(state.new("running"), owner=replace(state.Owner.here(), pid=dead_pid, born="1"))
    state.write(tmp_path, running)
    last = (tmp_path / state.FILE).stat().st_mtime
    settled = state.settle(tmp_path)
    assert settled.status == "killed"
    assert str(dead_pid) in settled.reason
    assert settled.ended_s == pytest.approx(last)
    assert state.read(tmp_path) == settled
    assert state.settle(tmp_path) == settled


def test_a_run_on_another_host_is_left_alone(tmp_path):
    far = replace(state.new("running"), owner=state.Owner("elsewhere", "0", 1, "1"))
    state.write(tmp_path, far)
    assert state.settle(tmp_path).status == "running"


@pytest.mark.parametrize(
    "text", ["", "{}", '{"status": "odd"}', '{"status": "done", "owner": {}}', '{"status": "done"}']
)
def test_a_damaged_state_reads_as_none(tmp_path, text):
    (tmp_path / state.FILE).write_text(text)
    assert state.read(tmp_path) is None
    assert state.settle(tmp_path) is None
