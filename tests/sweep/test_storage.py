"""Where a study is kept: what cannot be opened, who takes turns where, and a database that nobody has made yet."""

from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from orch.errors import OrchError
from orch.sweep.storage import journal_path, storage_of, turn_of


def test_a_storage_that_is_not_there(tmp_path) -> None:
    with pytest.raises(OrchError, match=r"^the storage .* cannot be used: .*\[E633\]$"):
        storage_of(f"sqlite:///{tmp_path}/no/such/folder/s.db")


def test_a_secret_of_a_storage_is_not_shown() -> None:
    with pytest.raises(OrchError) as caught:
        storage_of("nonsense://me:hunter2@host/x")
    assert "hunter2" not in str(caught.value)


def test_a_journal_lies_beside_the_runs(tmp_path) -> None:
    assert journal_path(tmp_path, "my recipe", "a/b").parent.parent.parent == tmp_path


def test_drivers_take_turns_beside_the_storage_wherever_their_runs_are(tmp_path) -> None:
    places = [tmp_path / name / "own.journal" for name in "ab"]
    for url in (f"sqlite:///{tmp_path}/team.db", str(tmp_path / "team.journal")):
        assert {turn_of(url, place) for place in places} == {tmp_path / "team.turn"}
    for url in ("sqlite://", "sqlite:///:memory:", "postgresql://host/team"):
        assert [turn_of(url, place) for place in places] == [place.with_suffix(".turn") for place in places]


def opened(url: str, together: Barrier, found: Any) -> None:
    """Put the number of studies at `url` into `found`, or the error; all processes open the storage at once."""
    make_url(url)  # imported by now
    together.wait()
    try:
        found.put(len(storage_of(url).get_all_studies()))
    except OrchError as error:
        found.put(str(error))


def test_drivers_that_find_no_database_make_one(tmp_path) -> None:
    context = get_context("forkserver")
    together, found = context.Barrier(4), context.Queue()
    given = (f"sqlite:///{tmp_path}/team.db", together, found)
    drivers = [context.Process(target=opened, args=given, daemon=True) for _ in range(4)]
    for driver in drivers:
        driver.start()
    assert [found.get(timeout=60) for _ in drivers] == [0] * 4
    for driver in drivers:
        driver.join(60)
