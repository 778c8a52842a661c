"""Process groups as arguments: several in one process, for DDP too, and the default group stays unset."""

from __future__ import annotations

import pytest

from orch.errors import RunError
from orch.gang import make_gang
from tests.gang import functions


def test_groups_of_some_ranks_in_any_order() -> None:
    with make_gang("processes", 3) as gang:
        assert gang.call(functions.gather_in, [2, 0]) == [[2.0, 0.0], None, [2.0, 0.0]]
        assert gang.call(functions.gather_in, [0, 1, 2])[1] == [0.0, 1.0, 2.0]


def test_a_group_is_made_once_and_no_default_group_is_left() -> None:
    with make_gang("processes", 2) as gang:
        assert gang.call(functions.same_group_twice) == [(True, False, False)] * 2


def test_ddp_takes_such_a_group() -> None:
    with make_gang("processes", 2) as gang:
        first, second = gang.call(functions.ddp_gradient)
        assert first == second
        assert first != [0.0] * len(first)


def test_a_rank_outside_a_group_is_told() -> None:
    with (
        make_gang("processes", 2) as gang,
        pytest.raises(Exception, match=r"rank 1 asks for group 'sub' of ranks \[0\]") as e,
    ):
        gang.call(functions.ask_for, [0])
    assert not isinstance(e.value, RunError)
