"""The place of a rank: what is written is read, by another mapping too, and costs next to nothing."""

from __future__ import annotations

import os
import time

from hypothesis import given
from hypothesis import strategies as st

from orch.gang.progress import KEEP, Place, Progress, new_file

PLACES = st.tuples(st.integers(0, 10**9), st.none() | st.text(max_size=40), st.booleans())


def test_a_new_progress_says_nothing() -> None:
    assert Progress().read() == Place()
    assert str(Place()) == ""


@given(st.lists(PLACES, max_size=30))
def test_the_last_place_is_read_through_another_mapping(places: list[tuple[int, str | None, bool]]) -> None:
    descriptor = new_file()
    writer, reader = Progress(descriptor), Progress(descriptor)
    os.close(descriptor)
    for number, (step, task, waiting) in enumerate(places, start=1):
        writer.set(step=step, task=task, waiting=waiting)
        assert reader.read() == Place(step, task, waiting, number)


def test_what_is_not_given_stays_and_clear_keeps_counting() -> None:
    progress = Progress()
    progress.set(step=31, task="all_reduce.b3")
    progress.set(waiting=True)
    progress.set(task=KEEP)
    assert progress.read() == Place(31, "all_reduce.b3", True, 3)
    assert str(progress.read()) == "step 31, task all_reduce.b3"
    progress.set(task=None)
    assert progress.read().task is None
    progress.clear()
    assert progress.read() == Place(None, None, False, 5)


def test_a_full_name_table_loses_names_only() -> None:
    progress = Progress()
    for number in range(400):
        progress.set(step=number, task=f"{number}" * 400)
    assert progress.read() == Place(399, None, False, 400)
    progress.set(task="0" * 400)
    assert progress.read().task == "0" * 400


def test_a_write_costs_less_than_a_microsecond() -> None:
    progress = Progress()

    def writes_s(count: int = 1_000) -> float:
        begin = time.perf_counter()
        for step in range(count):
            progress.set(step=step, task="all_reduce.b3", waiting=True)
        return (time.perf_counter() - begin) / count

    assert min(writes_s() for _ in range(100)) < 1e-6
