"""Buffers: sizes, padding and what they serve."""

import pytest

from orch.plan import Buffer, Group, Segment


@pytest.mark.parametrize(
    ("segments", "pad_to", "nbytes"),
    [
        ([("w", 5, "fp32", "w")], 1, 20),
        ([("w", 5, "fp32", "w")], 4, 32),
        ([("w", 8, "fp32", "w")], 4, 32),
        ([("w", 5, "bf16", "w")], 4, 16),
        ([("i", 3, "int32", "w"), ("v", 3, "bf16", "w")], 1, 20),
        ([("w", 0, "fp32", "w")], 3, 0),
    ],
)
def test_size_is_rounded_up_to_whole_shards(segments, pad_to, nbytes):
    assert Buffer("b", tuple(Segment(*segment) for segment in segments), pad_to).nbytes == nbytes


def test_a_buffer_serves_each_tensor_once():
    buffer = Buffer("b", (Segment("w:p", 2, "fp32", "w"), Segment("v", 1, "fp32", "v"), Segment("w:q", 2, "fp32", "w")))
    assert buffer.tensors == ("w", "v")
    assert [segment.is_gradient for segment in buffer.segments] == [False, True, False]


def test_a_rank_is_in_one_block():
    group = Group("halves", (range(2), (2, 5)))
    assert group.size == 2
    assert group.block_of(5) == (2, 5)
    with pytest.raises(KeyError):
        group.block_of(3)
