"""Faults are values: due in their steps, for their stacks, about their ranks."""

from __future__ import annotations

from orch.plan.fault import Fault, due

KILL = Fault("kill-rank", 2, 31)
NODE = Fault("kill-node", 1, 30, stack="dear")
CUT = Fault("cut-link", 0, 40, 1.5)


def test_a_fault_is_due_once_and_in_the_order_of_steps() -> None:
    faults = (CUT, KILL, NODE)
    assert due(faults, "dear", 30, 11) == [NODE, KILL, CUT]
    assert due(faults, "ddp", 30, 10) == [KILL]
    assert due(faults, "ddp", 32, 8) == []


def test_a_fault_names_its_ranks_and_itself() -> None:
    assert list(KILL.ranks(4)) == [2]
    assert list(NODE.ranks(4)) == [4, 5, 6, 7]
    assert [fault.kills for fault in (KILL, NODE, CUT)] == [True, True, False]
    assert str(KILL) == "rank 2 is killed at step 31"
    assert str(CUT) == "the link of node 0 is cut for 1.5 s at step 40"
