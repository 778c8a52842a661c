"""Python, torch, Ray and the store: what there is, and what a lack costs."""

from __future__ import annotations

import socket
import sqlite3
import sys
import tempfile
from pathlib import Path

import pytest

from orch.doctor import software
from orch.doctor.finding import State
from orch.doctor.software import Loaded

TORCH = {"version": "2.13.0", "cuda": None, "devices": [], "distributed": True, "gloo": True, "nccl": False}


def test_a_library_is_loaded_in_a_process_of_its_own() -> None:
    loaded = software.load_ray()
    assert loaded.works
    assert loaded.facts["version"].startswith("2.")


def test_a_library_that_is_not_there_or_does_not_load_is_told() -> None:
    assert software._load("no-such-library", "").error == "not installed"
    broken = software._load("torch", "raise OSError('libcudart.so.12: cannot open shared object file')")
    assert broken.error == "does not load: OSError: libcudart.so.12: cannot open shared object file"
    silent = software._load("torch", "pass")
    assert not silent.works


def test_torch_says_its_build_and_a_lack_says_what_it_costs() -> None:
    assert software.torch(Loaded("torch", TORCH)).text() == "2.13.0, CPU build, gloo"
    with_cuda = Loaded("torch", TORCH | {"cuda": "13.0", "nccl": True})
    assert software.torch(with_cuda).text() == "2.13.0, CUDA 13.0, gloo, nccl"
    missing = software.torch(Loaded("torch", {}, "not installed"))
    assert missing.state is State.LACK
    assert missing.text() == "not installed; nothing can be run, only planned and simulated; pip install 'orch[run]'"
    assert software.torch(Loaded("torch", TORCH | {"gloo": False})).state is State.LACK


def test_without_ray_the_ways_that_need_none_are_named() -> None:
    assert "--on processes or torchrun" in software.ray(Loaded("ray", {}, "not installed")).fix


def test_a_ray_that_somebody_left_running_is_found_if_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    assert software.running_ray() == ""
    (tmp_path / "ray").mkdir()
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        head.listen()
        address = f"127.0.0.1:{head.getsockname()[1]}"
        (tmp_path / "ray" / "ray_current_cluster").write_text(address)
        assert software.running_ray() == address
        assert f"--on {address}" in software.ray(Loaded("ray", {"version": "2.60.0"})).found
    assert software.running_ray() == ""


def test_this_python_is_right() -> None:
    assert software.python().state is State.OK
    assert sys.prefix in software.python().found


def test_the_store_is_looked_at_and_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert software.store(tmp_path).text().endswith("(the first run makes it)")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".index").mkdir()
    file = tmp_path / ".index" / "mlflow.db"
    with sqlite3.connect(file) as connection:
        connection.execute("create table runs (id text)")
        connection.execute("insert into runs values ('a'), ('b')")
    connection.close()
    assert software.store(tmp_path).text().endswith("mlflow.db, 2 entries")
    file.write_bytes(b"this is no database at all, whatever its name says" * 50)
    ruined = software.store(tmp_path)
    assert (ruined.state, ruined.fix) == (State.LACK, "orch runs fix")


def test_a_server_that_does_not_answer_is_told_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:  # bound and not listening: nobody answers there
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@127.0.0.1:{port}")
        found = software.store(tmp_path)
    assert found.state is State.NOTE
    assert "does not answer" in found.found
    assert "secret" not in found.text()


def test_without_git_the_cost_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert software.git().text() == "not found; a run cannot say which commit it ran; install git"
