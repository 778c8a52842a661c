"""Faults are values: due in their steps, for their stacks, about their ranks."""

from __future__ import annotations

import pytest

from orch.plan.fault import Fault, due, holding

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


SLOW = Fault("slow-node", 3, 20, until=40, amount=2.0)
RATE = Fault("link-rate", 1, 30, stack="dear", egress_bytes_per_s=2.5e6)


def test_what_lasts_holds_in_its_steps_and_strikes_never() -> None:
    faults = (SLOW, RATE, KILL)
    assert due(faults, "dear", 0, 100) == [KILL]
    assert holding(faults, "dear", 0, 20) == []
    assert holding(faults, "dear", 19, 2) == [SLOW]
    assert holding(faults, "dear", 39) == [SLOW, RATE]
    assert holding(faults, "ddp", 40, 1000) == []
    assert holding(faults, "dear", 10_000) == [RATE]


@pytest.mark.parametrize(
    ("other", "meet"),
    [
        (Fault("slow-node", 3, 39, amount=3.0), True),
        (Fault("slow-node", 3, 0, until=21, stack="dear", amount=3.0), True),
        (Fault("slow-node", 3, 0, until=20, amount=3.0), False),
        (Fault("slow-node", 3, 40, amount=3.0), False),
        (Fault("slow-node", 2, 20, amount=3.0), False),
        (Fault("link-rate", 3, 20, egress_bytes_per_s=1.0), False),
    ],
)
def test_two_that_set_the_same_thing_in_one_step_meet(other: Fault, meet: bool) -> None:
    assert (SLOW.meets(other), other.meets(SLOW)) == (meet, meet)
    assert not Fault("slow-node", 3, 0, stack="a").meets(Fault("slow-node", 3, 0, stack="b"))
    assert not KILL.meets(KILL)


def test_what_lasts_says_how_much_and_when() -> None:
    assert str(SLOW) == "node 3 is slower by 2 in steps 20 to 39"
    assert str(RATE) == "the link of node 1 has another rate, 20 Mbit/s out, from step 30 on"
    both = Fault("link-rate", 0, 1, until=2, egress_bytes_per_s=1e6, ingress_bytes_per_s=1e6)
    assert str(both) == "the link of node 0 has another rate, 8 Mbit/s, in steps 1 to 1"
    assert str(Fault("drop-rate", 1, 2, amount=0.01)) == "the link of node 1 loses packets, 1 %, from step 2 on"
