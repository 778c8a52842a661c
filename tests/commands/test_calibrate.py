"""`orch calibrate`: what it refuses, in one line."""

from __future__ import annotations


def test_a_list_of_nodes_that_is_none_is_refused(orch) -> None:
    told = orch("calibrate", "local-4", "--on", "processes", "--nodes", "two")
    assert told.code == 2
    assert told.err.strip() == "--nodes two is no list of numbers; for example --nodes 1,2,4 [E690]"
