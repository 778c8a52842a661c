"""`orch calibrate`: what it refuses, in one line."""

from __future__ import annotations

import pytest


def test_a_list_of_nodes_that_is_none_is_refused(orch) -> None:
    told = orch("calibrate", "local-4", "--on", "processes", "--nodes", "two")
    assert told.code == 2
    assert told.err.strip() == "--nodes two is no list of numbers; for example --nodes 1,2,4 [E690]"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nope"], "there is no cluster named 'nope'; all: orch list clusters [E150]"),
        (["local-4", "--model", "nope"], "model 'nope' is not known; all: orch list models [E420]"),
        (["local-4", "--technique", "nope"], "technique 'nope' is not known; all: orch list techniques [E220]"),
        (["local-4", "cluster.nodez=2"], "override 1: cluster.nodez=2: unknown key 'nodez' in cluster; did you mean"),
    ],
)
def test_what_is_wrong_is_told_without_a_place_that_nobody_can_open(orch, arguments: list[str], told: str) -> None:
    done = orch("calibrate", *arguments, "--on", "processes")
    assert done.code == 2
    assert done.err.startswith(told)
    assert done.err.count("\n") == 1
