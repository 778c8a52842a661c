"""Our own Ray: apart from everybody's, and gone without a trace, whoever is killed and when."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from orch.gang import end_all, make_gang
from orch.gang.janitor import sweep
from tests.gang import functions
from tests.gang.test_janitor import becomes_true, carriers
from tests.gang.test_torchrun import listening

# The driver says where it is; the test then kills it there. Each phase is entered by the real code.
DRIVER = """
import sys, ray
from orch.gang import fork_server, make_gang, end_all, ray_local, ray_workers
from tests.gang import functions

fork_server.PRELOAD = ('torch',)

def say(phase):
    if phase == sys.argv[1]:
        print("at", phase, flush=True)

def tell(phase, module, name):
    real = getattr(module, name)
    setattr(module, name, lambda *args, **kwargs: (say(phase), real(*args, **kwargs))[1])

tell("starting", ray, "init")
tell("placing", ray_workers, "placement_group")
tell("closing", ray, "shutdown")
with make_gang("local", 2) as gang:
    say("made")
    if sys.argv[1] != "closing":
        gang.call(functions.compute, 60.0, on_event=lambda rank, event: say("running"))
end_all()
"""


STRANGER = """
import sys
from ray._raylet import GcsClient
try:
    print(GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None, timeout=5))
except Exception as error:
    print(type(error).__name__, error)
"""


def stranger(address: str) -> str:
    """Return what a process of this machine hears that asks a Ray for its keys without a token."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-c", STRANGER, address]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False).stdout


@pytest.fixture
def temp() -> Iterator[Path]:
    """A temporary directory whose path is short enough for Ray's sockets; processes are known by it."""
    directory = Path(tempfile.mkdtemp(prefix="o-", dir="/tmp"))
    yield directory
    sweep(str(directory), str(directory))
    shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "number"),
    [
        ("starting", signal.SIGKILL),
        ("placing", signal.SIGKILL),
        ("running", signal.SIGKILL),
        ("closing", signal.SIGKILL),
        ("starting", signal.SIGINT),
        ("running", signal.SIGINT),
        ("running", signal.SIGTERM),
    ],
)
def test_a_killed_driver_leaves_no_process_and_no_directory(phase: str, number: signal.Signals, temp: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(temp), "PYTHONPATH": os.getcwd()}
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, phase],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=(temp / "stderr").open("w"),
        text=True,
        start_new_session=True,  # Ctrl-C reaches the whole foreground group of a terminal
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == f"at {phase}\n", (temp / "stderr").read_text()
    if number == signal.SIGINT:
        os.killpg(driver.pid, number)
    else:
        os.kill(driver.pid, number)
    assert driver.wait(15) in ((1, 130, -number) if number == signal.SIGINT else (-number,))
    assert becomes_true(lambda: not carriers(str(temp))), carriers(str(temp))
    assert becomes_true(lambda: not list(temp.glob("orch-*"))), list(temp.iterdir())


def test_two_drivers_at_once_do_not_meet(temp: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(temp), "PYTHONPATH": os.getcwd()}
    code = "from orch.gang import fork_server, make_gang; from tests.gang import functions\n"
    code += "fork_server.PRELOAD = ('torch',)\n"
    code += "with make_gang('local', 2) as gang: print(gang.call(functions.all_reduce))"
    drivers = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [driver.communicate(timeout=120)[0] for driver in drivers] == ["[3.0, 3.0]\n"] * 2
    assert becomes_true(lambda: not carriers(str(temp)))
    assert list(temp.glob("orch-*")) == []


def test_it_neither_reads_nor_changes_the_environment_and_leaves_no_directory(
    monkeypatch: pytest.MonkeyPatch, temp: Path
) -> None:
    end_all()
    monkeypatch.setattr(tempfile, "tempdir", str(temp))
    monkeypatch.setenv("RAY_ADDRESS", "203.0.113.1:1")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("HOME", str(temp))
    before = dict(os.environ)
    with make_gang("local", 2) as gang:
        assert dict(os.environ) == before
        (session,) = temp.glob("orch-ray-*")
        assert re.fullmatch(rf"orch-ray-{os.getpid()}-\w+", session.name)
        assert gang.call(functions.all_reduce) == [3.0, 3.0]
        assert session.stat().st_mode & 0o077 == 0  # sockets, logs: nobody else's to open
        # The servers of Ray, the driver and the host, and the stores and groups of the ranks: nobody elsewhere reaches one.
        assert listening() == {"127.0.0.1"}
        assert not (temp / ".ray").exists()
        assert "authentication" in stranger(str(ray.get_runtime_context().gcs_address)).lower()
    end_all()
    assert list(temp.iterdir()) == []
    assert carriers(session.name) == []
    assert dict(os.environ) == before


def test_what_a_dead_driver_left_is_removed_by_the_next(monkeypatch: pytest.MonkeyPatch, temp: Path) -> None:
    end_all()
    monkeypatch.setattr(tempfile, "tempdir", str(temp))
    gone = subprocess.Popen(["true"])
    gone.wait()
    stale, alive = temp / f"orch-ray-{gone.pid}-abc", temp / f"orch-ray-{os.getppid()}-abc"
    for directory in (stale, alive):
        (directory / "session").mkdir(parents=True)
    with make_gang("local", 1):
        assert not stale.exists()
        assert alive.exists()
    end_all()
