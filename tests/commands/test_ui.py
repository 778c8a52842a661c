"""The browser's server: which port, which hosts, and that it really answers under this machine's name."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

import psutil
import pytest

from orch.commands import ui
from orch.errors import OrchError


def listening() -> socket.socket:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    return taken


@contextmanager
def serving() -> Iterator[tuple[int, int, list[str]]]:
    """`orch ui` in a session of its own, once it serves: its port, its process, and what it has said."""
    with listening() as taken:
        port = taken.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "orch", "ui", "--port", str(port)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    try:
        told = list(takewhile(lambda line: "Uvicorn running on" not in line, process.stderr))
        threading.Thread(target=process.stderr.read, daemon=True).start()  # a full pipe would stop the server
        yield port, process.pid, told
    finally:
        process.terminate()
        process.wait(timeout=60)


def test_a_port_in_use_is_said_not_joined() -> None:
    with listening() as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OrchError, match=rf"cannot listen on 127.0.0.1:{port}: .*in use; leave --port out"):
            ui.choose_port("127.0.0.1", port)


def test_without_a_port_a_free_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as taken:
        monkeypatch.setattr(ui, "_USUAL_PORT", taken.getsockname()[1])
        assert ui.choose_port("127.0.0.1", None) not in (0, taken.getsockname()[1])


def test_an_address_of_no_interface_is_one_line() -> None:
    with pytest.raises(OrchError, match="cannot listen on"):
        ui.choose_port("203.0.113.7", 5000)


def test_this_machine_is_allowed_by_name() -> None:
    arguments = ui.server_arguments("sqlite:///x.db", "0.0.0.0", 5001)
    allowed = arguments[arguments.index("--allowed-hosts") + 1].split(",")
    assert {"localhost:*", "127.0.0.1:*", f"{socket.gethostname()}:*"} <= set(allowed)
    assert arguments[arguments.index("--backend-store-uri") + 1] == "sqlite:///x.db"


def test_without_runs_it_says_so(orch) -> None:
    done = orch("ui")
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith("/runs; orch run quickstart makes one; or --runs DIR [E019]\n")


def test_runs_that_a_server_indexes_are_browsed_there(orch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hunter2@tracking:5000")
    done = orch("ui")
    assert done.code == 2
    assert done.err == "the runs are indexed by a server: open http://[redacted]@tracking:5000 [E811]\n"


@pytest.mark.slow
def test_the_server_answers_and_leaves_nothing_behind(orch, project: Path) -> None:
    """The real thing: an empty directory of runs, its index made, the page served under this machine's name."""
    (project / "runs").mkdir()
    with serving() as (port, pid, told):
        assert told[0].startswith(f"http://127.0.0.1:{port} will show sqlite:///")
        assert not any("deprecated" in line for line in told)
        server = psutil.Process(pid)
        found = [one for each in (server, *server.children(recursive=True)) for one in each.net_connections("inet")]
        assert {one.laddr for one in found if one.status == psutil.CONN_LISTEN} == {("127.0.0.1", port)}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/", headers={"Host": f"{socket.gethostname()}:{port}"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert b"<title>MLflow</title>" in answer.read()
    assert [p.pid for p in psutil.process_iter() if os.getsid(p.pid) == pid] == []


@pytest.mark.slow
def test_a_real_browser_finds_the_run_in_the_default_store(orch, project: Path, browser) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    run = Path(orch("run", "mine", "--simulate", "--json").document["run_dir"])
    with serving() as (port, *_):
        wait = WebDriverWait(browser, 60)
        browser.get(f"http://127.0.0.1:{port}/#/experiments")
        wait.until(lambda driver: driver.find_elements("link text", "mine"))[0].click()
        wait.until(lambda driver: "/experiments/" in driver.current_url)
        experiment = re.search(r"/experiments/(\d+)", browser.current_url)
        assert experiment is not None
        browser.get(f"http://127.0.0.1:{port}/#/experiments/{experiment[1]}/runs")
        wait.until(lambda driver: run.name in driver.find_element("tag name", "body").text)
        # The run, and folded up under it one entry for each of its two stacks.
        assert "3 matching runs" in browser.find_element("tag name", "body").text
