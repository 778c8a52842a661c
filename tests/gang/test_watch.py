"""Hangs against long computations, on made-up looks: no process, no clock."""

from __future__ import annotations

import pytest

from orch.gang.local_workers import Look
from orch.gang.progress import Place
from orch.gang.watch import Watch, name_ranks, waited

WINDOW_S = 7.0


def look(
    cpu_s: float | None = 0.0, task: str = "a", waiting: bool = False, stopped: bool = False, writes: int = 1
) -> Look:
    return Look(Place(3, task, waiting, writes), cpu_s, stopped)


def watch_for(seconds: float, looks_at, pending=None, dt: float = 0.5):  # type: ignore[no-untyped-def]
    """Return (time, hang) of the first hang within `seconds`, or None. `looks_at(t)` is what there is to see."""
    watch = Watch(WINDOW_S)
    for tick in range(int(seconds / dt) + 1):
        looks = looks_at(tick * dt)
        found = watch.hung(tick * dt, looks, set(range(len(looks))) if pending is None else pending)
        if found is not None:
            return tick * dt, found
    return None


def test_an_idle_rank_that_others_wait_for_is_named_within_ten_seconds() -> None:
    found = watch_for(30, lambda t: [look(waiting=True), look(), look(waiting=True)])
    assert found is not None
    at_s, hang = found
    assert WINDOW_S <= at_s <= 10
    assert (hang.rank, hang.text) == (1, "rank 1 of 3 hangs in step 3, task a; ranks 0, 2 wait for it")


def test_a_rank_that_computes_is_no_hang_and_is_named_once_it_stops_computing() -> None:
    assert watch_for(300, lambda t: [look(waiting=True), look(cpu_s=0.3 * t)]) is None
    found = watch_for(60, lambda t: [look(waiting=True), look(cpu_s=min(t, 20.0))])
    assert found is not None
    assert 20 < found[0] <= 30


def test_ranks_that_advance_or_wait_for_nobody_are_no_hang() -> None:
    assert watch_for(100, lambda t: [look(waiting=True, writes=int(t / 6)), look()]) is None
    assert watch_for(100, lambda t: [look(), look()]) is None


def test_a_stopped_rank_is_named_even_inside_the_collective() -> None:
    found = watch_for(30, lambda t: [look(waiting=True), look(waiting=True, stopped=True)])
    assert found is not None
    assert found[1].text == "rank 1 of 2 is stopped in step 3, task a; rank 0 waits for it"
    both = watch_for(30, lambda t: [look(waiting=True), look(stopped=True), look(stopped=True)])
    assert both is not None
    assert both[1].text == "ranks 1, 2 of 3 are stopped in step 3, task a; rank 0 waits for them"


def test_ranks_in_different_collectives_and_a_rank_that_returned() -> None:
    found = watch_for(30, lambda t: [look(waiting=True), look(waiting=True, task="b")])
    assert found is not None
    assert "rank 0 in step 3, task a; rank 1 in step 3, task b" in found[1].text
    found = watch_for(30, lambda t: [look(waiting=True), look()], pending={0})
    assert found is not None
    assert found[1].text.startswith("rank 1 of 2 has returned in step 3")


def test_a_slow_collective_gets_more_time() -> None:
    found = watch_for(100, lambda t: [look(waiting=True), look(waiting=True)])
    assert found is not None
    assert found[0] > 50
    assert "network" in found[1].text


def test_a_collective_that_moves_bytes_is_no_hang() -> None:
    assert watch_for(600, lambda t: [look(waiting=True, cpu_s=0.01 * t), look(waiting=True, cpu_s=0.01 * t)]) is None


def test_time_in_which_nobody_looked_does_not_count() -> None:
    assert watch_for(600, lambda t: [look(waiting=True), look()], dt=120.0) is None


@pytest.mark.parametrize(("ranks", "text"), [([2], "rank 2"), ([0, 1, 3], "ranks 0, 1, 3")])
def test_names(ranks: list[int], text: str) -> None:
    assert name_ranks(ranks) == text
    assert waited([], "waited") == ""
    assert waited(ranks, "waited") == f"; {text} waited for it"
