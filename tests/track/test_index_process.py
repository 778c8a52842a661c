"""The loop that serves one driver: what fails is an answer, and what is known to be gone is not tried at once again."""

import json
import os
import socket
import threading
import time

import pytest

from orch.track import index_process, state
from orch.track.index_process import Keeper
from orch.track.settings import store_of

pytest.importorskip("mlflow")


class Noted:
    """Stands in for a keeper and notes what it was asked."""

    def __init__(self):
        self.asked = []

    def answer(self, request):
        self.asked.append(request["do"])
        return {"done": request["do"]}

    def poll(self):
        self.asked.append("(poll)")

    def settle(self):
        self.asked.append("(settle)")


def serve(*writes, close=True):
    """Serve a driver that makes these writes; return what was asked and answered."""
    reading, writing = os.pipe()
    answers_read, answers_write = os.pipe()
    keeper = Noted()
    with os.fdopen(reading, "rb") as requests, os.fdopen(answers_write, "w") as answers:
        thread = threading.Thread(target=index_process.serve, args=(keeper, requests, answers))
        thread.start()
        for data in writes:
            os.write(writing, data)
        if close:
            os.close(writing)
        thread.join(30)
        assert not thread.is_alive()
    if not close:
        os.close(writing)
    with os.fdopen(answers_read) as lines:
        return keeper.asked, [json.loads(line) for line in lines]


def test_requests_are_answered_in_order_however_they_are_cut():
    one, two = b'{"do": "sync", "ask": 1}\n', b'{"do": "forget", "ask": 2}\n'
    asked, answers = serve(one[:5], one[5:] + two[:9], two[9:])
    assert asked == ["sync", "forget", "(settle)"]
    assert answers == [{"done": "sync", "ask": 1}, {"done": "forget", "ask": 2}]


def test_a_driver_that_leaves_in_order_is_not_searched_for():
    assert serve(b'{"do": "leave", "ask": 1}\n', close=False) == (["(poll)"], [])


def test_watched_runs_are_looked_at_in_between(monkeypatch):
    monkeypatch.setattr(index_process, "POLL_S", 0.01)
    reading, writing = os.pipe()
    keeper = Noted()
    polled = threading.Event()
    keeper.poll = polled.set
    with os.fdopen(reading, "rb") as requests, open(os.devnull, "w") as nowhere:
        thread = threading.Thread(target=index_process.serve, args=(keeper, requests, nowhere))
        thread.start()
        assert polled.wait(30)
        os.close(writing)
        thread.join(30)
    assert keeper.asked == ["(settle)"]


def test_a_parent_that_is_gone_is_noticed_although_a_child_of_it_keeps_our_input_open(monkeypatch):
    monkeypatch.setattr(index_process, "POLL_S", 0.01)
    parents = iter([7, 7, 1])
    monkeypatch.setattr(index_process.os, "getppid", lambda: next(parents))
    asked, _ = serve(close=False)
    assert asked == ["(poll)", "(settle)"]


def test_what_is_wrong_with_a_run_is_an_answer(shared, tmp_path):
    keeper = Keeper(shared[0], store_of(shared[0]))
    assert "has no readable state.json" in keeper.answer({"do": "sync", "run": str(tmp_path)})["error"]


def test_a_dead_driver_is_closed_although_it_is_seen_only_later(shared, make, monkeypatch):
    run = make("late").to("running")
    keeper = Keeper(shared[0], store_of(shared[0]))
    assert "error" not in keeper.answer({"do": "watch", "run": str(run.path)})
    owners = iter([True, True, False])
    monkeypatch.setattr(state.Owner, "alive", property(lambda self: next(owners, False)))
    keeper.settle()
    assert run.state.status == "killed"


def test_a_store_moved_with_its_runs_is_set_aside(shared, store_copy, tmp_path):
    store = store_copy()  # its experiments keep their artifacts where it was made
    keeper = Keeper(tmp_path / "runs", store)
    answer = keeper.answer({"do": "rebuild"})
    assert store.file.with_name(answer["set_aside"]).exists()
    assert not store.file.exists()


def test_a_server_that_is_not_there_is_said_in_a_line_and_not_tried_again_at_once(shared, make, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    run = make().to("running")
    keeper = Keeper(tmp_path, store_of(tmp_path, f"http://me:hunter2@127.0.0.1:{port}"))
    first = keeper.answer({"do": "watch", "run": str(run.path)})["error"]
    start = time.monotonic()
    assert keeper.answer({"do": "sync", "run": str(run.path)})["error"] == first
    assert time.monotonic() - start < 0.5
    assert str(port) in first
    assert "\n" not in first
    assert "hunter2" not in first
