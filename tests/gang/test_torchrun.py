"""The world of torchrun, started by the real torchrun, and what is refused outside it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from orch.errors import OrchError
from orch.gang import make_gang, serve_other_ranks

SCRIPT = """
import sys
from pathlib import Path
from orch.errors import OrchError
from orch.gang import fork_server, make_gang, serve_other_ranks
from tests.gang import functions
from tests.gang.test_torchrun import listening

fork_server.PRELOAD = ("torch",)
if serve_other_ranks():
    print("served")
    sys.exit(0)
logs = Path(sys.argv[1])
with make_gang("torchrun", 2, log_dir=logs) as gang:
    print("first", gang.kind, gang.call(functions.all_reduce))
    pids = [answer[3] for answer in gang.call(functions.who)]
    print("open", gang.call(functions.listens), sorted(listening()))
    gang.call(functions.speak, "hello")
with make_gang("torchrun", 2, log_dir=logs) as gang:
    print("warm", [answer[3] for answer in gang.call(functions.who)] == pids)
for size, function, args in [(2, functions.fail_at, (1, "kill")), (3, functions.who, ())]:
    try:
        with make_gang("torchrun", size, log_dir=logs) as gang:
            gang.call(function, *args)
    except OrchError as error:
        print("error", error)
with make_gang("torchrun", 2, log_dir=logs) as gang:
    print("again", gang.call(functions.all_reduce))
"""


# As srun starts a rank: no agent and no store, only these four variables.
RANK = """
import sys
sys.modules["ray"] = None  # as where Ray is not installed
from orch.errors import OrchError
from orch.gang import fork_server, make_gang, serve_other_ranks
from tests.gang import functions

fork_server.PRELOAD = ("torch",)
try:
    if serve_other_ranks():
        sys.exit(0)
    with make_gang("torchrun", 2) as gang:
        print(gang.call(functions.all_reduce), gang.call(functions.listens))
except OrchError as error:
    print(error)
"""


def listening() -> set[str]:
    """Return the addresses that this process and those it started listen on."""
    me = psutil.Process()
    found = [one for each in (me, *me.children(recursive=True)) for one in each.net_connections("inet")]
    return {one.laddr.ip.removeprefix("::ffff:") for one in found if one.status == psutil.CONN_LISTEN}


@pytest.fixture
def rank(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start a rank of one world of two, as srun would, with more variables."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": os.getcwd()}
    base = {name: value for name, value in os.environ.items() if not name.startswith(("ORCH_", "TORCHELASTIC"))}

    def start(number: int, **variables: str) -> subprocess.Popen[str]:
        environment = base | world | {"RANK": str(number)} | variables
        command = [sys.executable, "-c", RANK]
        return subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True)

    return start


def test_a_world_without_torchrun_meets_where_it_is_told_and_lets_no_stranger_in(
    rank: Callable[..., subprocess.Popen[str]],
) -> None:
    own = {"ORCH_INTERFACE": "none7,lo", "ORCH_SECRET": "one"}  # the first interface is not there: the next counts
    first, stranger = rank(0, **own), rank(1, **own | {"ORCH_SECRET": "other"})
    assert stranger.communicate(timeout=60)[0] == (
        "rank 0 does not let rank 1 in: they do not share the same ORCH_SECRET; "
        "export it before torchrun or srun on every machine [E725]\n"
    )
    second = rank(1, **own)
    assert first.communicate(timeout=60)[0] == "[3.0, 3.0] [['127.0.0.1'], ['127.0.0.1']]\n"
    assert (second.communicate(timeout=60)[0], first.returncode, second.returncode) == ("", 0, 0)


def test_a_world_of_two(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [*command, str(script), str(tmp_path / "logs")],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "again [3.0, 3.0]",
        "error rank 1 of 2 died in step 3, task all_reduce.b1 (signal 9); rank 0 waited for it; log: logs/rank1.log [E701]",
        "error the run wants 3 workers; torchrun started 2; start 3, or set cluster.nodes and "
        "cluster.devices_per_node to what makes 2 [E712]",
        "first torchrun [3.0, 3.0]",
        "open [['127.0.0.1'], ['127.0.0.1']] ['127.0.0.1']",
        "served",
        "warm True",
    ]
    assert "hello 1" in (tmp_path / "logs" / "rank1.log").read_text()


def test_outside_a_world_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    expected = r"^--on torchrun joins a world that torchrun made; RANK, MASTER_ADDR, MASTER_PORT not set; torchrun"
    with pytest.raises(OrchError, match=expected):
        make_gang("torchrun", 2)
    with pytest.raises(OrchError, match=expected):
        serve_other_ranks()


def test_a_rank_that_is_not_the_first_cannot_drive() -> None:
    from orch.gang.torchrun import TorchrunSession

    environ = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    with pytest.raises(OrchError, match="rank 1 of 2 cannot drive a run; rank 0 does"):
        TorchrunSession(environ)
    with pytest.raises(OrchError, match="must be numbers"):
        TorchrunSession({**environ, "RANK": "one"})
