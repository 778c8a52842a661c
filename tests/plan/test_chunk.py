"""Turns of ranks: every pair of ranks meets in one turn, and together turns take what the whole exchange takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.cluster import Cluster, Device, Level, Link, Links, Span
from orch.plan import AllToAll, Chunk, ExpertBackward, Rows, check, crossings, recut
from orch.plan.chunk import turn_s
from orch.testing import mixture
from orch.workload import Layout, mixture_training


@given(st.integers(1, 5), st.integers(1, 5))
def test_every_pair_of_ranks_meets_in_one_turn(size: int, turns: int) -> None:
    ranks = size * turns
    pairs = []
    for turn in range(turns):
        chunk = Chunk(0, 1, turn, turns)
        sent = {(place, to) for place in range(ranks) for to in chunk.meant_for(place, ranks)}
        assert sent == {(by, place) for place in range(ranks) for by in chunk.sent_by(place, ranks)}
        pairs += sorted(sent)
    assert sorted(pairs) == [(place, to) for place in range(ranks) for to in range(ranks)]
    assert list(Chunk(0, 1, 0, turns).meant_for(0, ranks)) == list(range(size))


def cluster(nodes: int, per_node: int) -> Cluster:
    """Bytes cost 1 s inside a node and 3 s between nodes; nothing starts up."""
    device = Device("cpu", "example", {"fp32": 1e30}, memory_bytes_per_s=1e30)
    links = Links(Link(Level(0.0, 1.0)), Link(Level(0.0, 3.0)))
    return Cluster("example", nodes, per_node, device, links)


@pytest.mark.parametrize(("nodes", "per_node", "turns"), [(8, 1, 8), (8, 1, 2), (1, 4, 4), (2, 4, 2), (4, 2, 2)])
def test_without_start_ups_turns_take_what_the_whole_takes(nodes: int, per_node: int, turns: int) -> None:
    where, size = cluster(nodes, per_node), nodes * per_node
    span = Span(size, nodes, per_node) if nodes > 1 else Span(size, 1, size)
    whole = where.all_to_all_s(float(size), span)
    found = [turn_s(size / turns, turn, turns, where, span) for turn in range(turns)]
    assert sum(found) == pytest.approx(whole)
    assert (found[0] == 0.0) == (turns == size)
    if (nodes, turns) == (2, 2):
        # The node's own pairs go by its own network.
        assert found[0] == pytest.approx(3.0)


@pytest.mark.parametrize("capacity", [None, 1.0])
@pytest.mark.parametrize("turns", [2, 4])
def test_turns_of_a_crossing_hand_over_what_the_whole_does(capacity: float | None, turns: int) -> None:
    plain = mixture_training(mixture.layers(tokens=7, capacity=capacity), Layout(4, 4), 1)
    (step,) = plain.steps
    cuts = {
        stage.name: tasks
        for crossing in crossings(step)
        for stage, tasks in zip(crossing.stages, crossing.in_turns(turns, alone=turns == 4), strict=True)
    }
    new = recut(step, cuts)
    check(type(plain)(plain.name, 4, (new,), plain.roles, plain.groups), finished=True)
    for part in {task.op.part for task in step.of(Rows)} - {"counts"}:
        ((whole,), moved) = ([task.op for task in one.of(AllToAll) if task.op.part == part] for one in (step, new))
        assert [op.turn for op in moved] == list(range(turns == 4, turns))
        own = 0 if turns == 2 else whole.buffer.segments[0].numel // 4 * 4
        assert sum(op.nbytes for op in moved) == whole.nbytes - own
    assert [bool(task.op.ready) for task in new.of(ExpertBackward)] == [False] * (turns - 1) + [True]
