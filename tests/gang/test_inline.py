"""A gang of one in this process."""

from __future__ import annotations

import os

import pytest

from orch.errors import OrchError, RunError
from orch.gang import make_gang
from tests.gang import functions


def test_runs_here_with_a_group_of_one_and_events() -> None:
    seen: list[object] = []
    with make_gang("inline", 1) as gang:
        assert gang.call(functions.who, 5, per_rank=[(6,)]) == [(0, 1, 1, os.getpid(), 5, 6)]
        assert gang.call(functions.all_reduce) == [1.0]
        gang.call(functions.events, 1)
        gang.call(functions.events, 2, on_event=lambda rank, event: seen.append((rank, event)))
    assert seen == [(0, {"step": 0}), (0, {"step": 0}), (0, {"step": 1})]
    with pytest.raises(RunError, match="closed"):
        gang.call(functions.who)


def test_exceptions_come_as_they_are() -> None:
    with make_gang("inline", 1) as gang, pytest.raises(ValueError, match="not finite"):
        gang.call(functions.fail_at, 0, "raise")


def test_more_than_one_worker_is_refused() -> None:
    with pytest.raises(OrchError, match=r"runs 1 worker in this process; the cluster has 2; use --on processes"):
        make_gang("inline", 2)
