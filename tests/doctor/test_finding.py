"""A finding in one line."""

from __future__ import annotations

from orch.doctor.finding import State, gigabytes, lacking, noted, ok


def test_a_finding_says_what_it_costs_and_what_to_do_in_one_line() -> None:
    assert ok("cores", "8").text() == "8"
    found = noted("cores", "1", "workers take turns", "use more")
    assert (found.state, found.text()) == (State.NOTE, "1; workers take turns; use more")
    assert lacking("torch", "not installed", "nothing runs", "pip").state == "lack"


def test_sizes_read_well() -> None:
    assert [gigabytes(9.25 * 2**30), gigabytes(100 * 2**20)] == ["9.2 GiB", "100 MiB"]
