"""What a worker tells of an exception, and where its output goes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from orch.errors import OrchError
from orch.gang import make_gang
from orch.gang.worker import Failure, describe, place_of
from tests.gang import functions


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001
        return caught


def test_the_place_is_the_innermost_frame_of_ones_own_code() -> None:
    with pytest.raises(OSError, match="No such file") as caught:
        Path("/nowhere/at/all").read_text()
    file, _, line = place_of(caught.value).rpartition(":")
    assert file == __file__
    assert "read_text" in Path(file).read_text().splitlines()[int(line) - 1]


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (ValueError("a\nb"), Failure("ValueError", "a", "", False)),
        (ValueError(), Failure("ValueError", "", "", False)),
        (RuntimeError("[pair.cc] Connection closed by peer [127.0.0.1]:1"), Failure("RuntimeError", "x", "", True)),
        (RuntimeError("shapes differ"), Failure("RuntimeError", "x", "", False)),
    ],
)
def test_an_exception_is_described(error: BaseException, failure: Failure) -> None:
    found = describe(raised(error))
    assert (found.kind, found.lost_peer, found.error) == (failure.kind, failure.lost_peer, None)
    assert failure.text in ("x", found.text)
    assert found.place.startswith(__file__)
    assert pickle.loads(pickle.dumps(found)) == found


def test_an_error_of_the_user_travels_whole() -> None:
    error = OrchError("data set 'x' is absent", code="E321", hint="make it")
    found = pickle.loads(pickle.dumps(describe(raised(error))))
    assert str(found.error) == "data set 'x' is absent; make it [E321]"


def test_a_result_that_cannot_travel_is_said_by_the_rank() -> None:
    with make_gang("processes", 2) as gang, pytest.raises(OrchError, match=r"rank 0 of 2 raised .*pickle"):
        gang.call(functions.unpicklable)


def test_output_of_libraries_is_redirected_too(tmp_path: Path) -> None:
    code = "import os, sys; from orch.gang.worker import redirect; redirect(sys.argv[1]); os.system('echo from below'); print('x')"
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "log")], env=environment, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")
    assert (tmp_path / "log").read_text() == "from below\nx\n"


def test_a_log_that_cannot_be_opened_is_no_failure(tmp_path: Path) -> None:
    with make_gang("processes", 1, log_dir=tmp_path / "logs") as gang:
        (tmp_path / "logs" / "rank0.log").mkdir()
        assert gang.call(functions.who)[0][0] == 0
