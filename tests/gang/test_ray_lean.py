"""The lean start leaves Ray as it found it, and a Ray that it does not fit is started in the ordinary way."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from orch.gang import end_all, make_gang, ray_local
from orch.gang.ray_lean import lean_start
from tests.gang import functions
from tests.gang.test_janitor import carriers
from tests.gang.test_ray_session import session_tag, title


def test_it_puts_back_what_it_replaced() -> None:
    node: Any = importlib.import_module("ray._private.node")
    services: Any = importlib.import_module("ray._private.services")
    before = (node.Node.start_api_server, services.start_ray_process)
    with lean_start():
        assert (node.Node.start_api_server, services.start_ray_process) != before
    assert (node.Node.start_api_server, services.start_ray_process) == before


def test_only_the_needed_processes_run() -> None:
    with make_gang("local", 2) as gang:
        gang.call(functions.who)
        titles = [title(pid) for pid in carriers(session_tag())]
    assert not [name for name in titles if "Agent" in name or "dashboard" in name or "monitor" in name]
    assert sum("raylet" in name for name in titles) == 1


@pytest.mark.slow
def test_another_version_of_ray_is_started_in_the_ordinary_way(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def does_not_fit() -> Iterator[None]:
        raise AttributeError("start_api_server")
        yield

    end_all()
    monkeypatch.setattr(ray_local, "lean_start", does_not_fit)
    with make_gang("local", 2) as gang:
        assert gang.call(functions.all_reduce) == [3.0, 3.0]
    end_all()
    assert carriers(session_tag()) == []
