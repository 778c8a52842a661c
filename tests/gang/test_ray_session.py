"""A Ray that is somebody else's: never joined unasked, joined by its address, and left as it was found."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orch.errors import OrchError, RunError
from orch.gang import end_all, interfaces, make_gang
from orch.gang.ray_workers import bundle_counts
from tests.gang import functions
from tests.gang.test_janitor import carriers
from tests.gang.test_ray_local import temp  # noqa: F401 - a fixture

CPU = {"CPU": 4.0, "GPU": 0.0}


@pytest.fixture
def foreign(temp: Path) -> Iterator[str]:  # noqa: F811
    """A `ray start --head` with 2 CPUs, as another user would have it; ended by its own process, not by `ray stop`."""
    end_all()
    command = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--head", "--block"]
    options = ["--port=0", "--num-cpus=2", "--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={temp}"]
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": os.getcwd()}
    head = subprocess.Popen(
        [*command, *options, "--object-store-memory=80000000"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert head.stdout is not None
    lines = []
    for line in head.stdout:
        lines.append(line)
        if found := re.search(r"--address='([\d.]+:\d+)'", line):
            break
    else:
        pytest.fail("".join(lines))
    yield found[1]
    end_all()
    head.send_signal(signal.SIGTERM)
    assert head.wait(30) is not None


@pytest.mark.slow
def test_a_foreign_ray_is_left_alone_joined_by_address_and_its_limits_are_named(
    foreign: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", foreign)
    with make_gang("local", 3) as gang:
        assert gang.call(functions.all_reduce) == [6.0] * 3
        assert addresses_of_this_process() != foreign
    end_all()
    with make_gang(foreign, 2, log_dir=tmp_path) as gang:
        assert gang.kind == "ray"
        assert gang.call(functions.all_reduce) == [3.0] * 2
        first = gang.call(functions.who)
        gang.call(functions.speak, "hello")
        with pytest.raises(RunError, match=r"rank 1 of 2 died in step 3, task all_reduce.b1 \(signal 9\)"):
            gang.call(functions.fail_at, 1, "kill")
    assert "hello 0" in (tmp_path / "rank0.log").read_text()
    name, address = list(interfaces.addresses().items())[-1]  # the first is loopback, where one machine meets anyhow
    monkeypatch.setenv("ORCH_INTERFACE", name)
    with make_gang(foreign, 2) as gang:
        assert gang.call(functions.listens) == [[address]] * 2
    monkeypatch.setenv("ORCH_INTERFACE", "none7")
    with pytest.raises(
        OrchError, match=r"^ORCH_INTERFACE: \S+ has no interface 'none7' with an IPv4 address; there are lo"
    ):
        make_gang(foreign, 2)
    monkeypatch.delenv("ORCH_INTERFACE")
    begin = time.perf_counter()
    with pytest.raises(OrchError, match=r"^4 workers want 4 CPUs; the cluster has 2 on 1 node"):
        make_gang(foreign, 4)
    with pytest.raises(OrchError, match=r"^2 workers want 2 nodes with 1 CPU each; the cluster has 1 node with 2 CPUs"):
        make_gang(foreign, 2, per_node=1)
    with pytest.raises(OrchError, match=r"^2 workers want 2 GPUs; the cluster has 0 on 1 node"):
        make_gang(foreign, 2, device="cuda")
    assert time.perf_counter() - begin < 1
    with make_gang(foreign, 2) as gang:
        assert gang.call(functions.who) != first
    end_all()
    with make_gang(foreign, 1) as gang:  # still there after we left
        assert gang.call(functions.all_reduce) == [1.0]


def addresses_of_this_process() -> str:
    import ray

    return str(ray.get_runtime_context().gcs_address)


def test_nobody_at_the_address_is_said_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    end_all()
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
        begin = time.perf_counter()
        with pytest.raises(OrchError, match=rf"^no Ray cluster answers at {address}: .*refused"):
            make_gang(address, 2)
        assert time.perf_counter() - begin < 5


def test_a_ray_of_the_caller_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    end_all()
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    with pytest.raises(OrchError, match="already connected to a Ray that orch did not start"):
        make_gang("local", 2)


@pytest.mark.slow
@pytest.mark.parametrize("whose", ["raylet", "gcs_server", "ray::RayHost"])
def test_a_dead_part_of_ray_is_an_error_and_the_next_gang_works(whose: str) -> None:
    with make_gang("local", 2) as gang:
        (pid,) = [pid for pid in carriers(session_tag()) if whose in title(pid)]
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(RunError, match=r"rank 0 of 2 died .*(host process is gone|of the local Ray died)"):
            gang.call(functions.compute, 60.0)
    with make_gang("local", 2) as gang:
        assert gang.call(functions.all_reduce) == [3.0, 3.0]


def session_tag() -> str:
    return f"orch-ray-{os.getpid()}-"


def title(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()


@pytest.mark.parametrize(
    ("size", "per_node", "nodes", "counts"),
    [
        (4, None, [CPU], [4]),
        (5, None, [CPU, {"CPU": 2.0}], [4, 1]),
        (8, 2, [CPU] * 4, [2, 2, 2, 2]),
        (5, 2, [CPU] * 3, [2, 2, 1]),
    ],
)
def test_workers_are_counted_out_to_nodes(
    size: int, per_node: int | None, nodes: list[dict[str, float]], counts: list[int]
) -> None:
    assert bundle_counts(size, per_node, False, nodes) == counts
