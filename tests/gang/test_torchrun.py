"""The world of torchrun, started by the real torchrun, and what is refused outside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orch.errors import OrchError
from orch.gang import make_gang, serve_other_ranks

SCRIPT = """
import sys
from pathlib import Path
from orch.errors import OrchError
from orch.gang import make_gang, serve_other_ranks
from tests.gang import functions

if serve_other_ranks():
    print("served")
    sys.exit(0)
logs = Path(sys.argv[1])
with make_gang("torchrun", 2, log_dir=logs) as gang:
    print("first", gang.kind, gang.call(functions.all_reduce))
    pids = [answer[3] for answer in gang.call(functions.who)]
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
