"""Where a group sits, against counting it."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.cluster.span import Span, span_of
from orch.errors import OrchError


@given(st.integers(1, 9), st.lists(st.integers(0, 71), min_size=1, unique=True))
def test_span_counts_nodes_and_the_fullest(per_node, ranks):
    counts = Counter(rank // per_node for rank in ranks)
    assert span_of(ranks, per_node, 72) == Span(len(ranks), len(counts), max(counts.values()))


@given(st.integers(1, 9), st.integers(0, 40), st.integers(1, 31))
def test_neighbours_need_no_counting(per_node, first, count):
    ranks = range(first, first + count)
    shuffled = [*ranks][::-1]
    counts = Counter(rank // per_node for rank in ranks)
    expected = Span(count, len(counts), max(counts.values()))
    assert span_of(ranks, per_node, 72) == span_of(shuffled, per_node, 72) == expected


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([], "a group needs at least one rank [E304]"),
        ([0, 3, 3], "rank 3 is twice in one group [E304]"),
        ([0, 8], "rank 8 does not exist; this cluster has ranks 0 to 7 [E304]"),
        ([-1, 2], "rank -1 does not exist; this cluster has ranks 0 to 7 [E304]"),
    ],
)
def test_impossible_groups(ranks, message):
    with pytest.raises(OrchError) as caught:
        span_of(ranks, 4, 8)
    assert str(caught.value) == message


def test_span_reads_well():
    assert (str(Span(8, 2, 4)), str(Span(4, 1, 4))) == ("8 ranks on 2 nodes", "4 ranks on 1 node")
