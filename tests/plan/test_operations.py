"""Operations: costs from the cluster, bytes on the wire, and what a base refuses."""

from dataclasses import replace

import pytest

from orch.cluster import Device
from orch.plan import (
    AllGather,
    AllGatherShards,
    AllReduce,
    AllToAll,
    Buffer,
    Compute,
    Encode,
    Operation,
    ReduceScatter,
    Segment,
    Update,
)
from orch.plan.operations import changed
from orch.testing.small import cluster

BUFFER = Buffer("b", (Segment("w", 12, "fp32", "w"),))
WHERE = cluster(4, alpha_s=6.0, beta_s_per_byte=0.5)
SPAN = WHERE.world


@pytest.mark.parametrize(
    ("op", "seconds", "wire"),
    [
        (AllReduce(BUFFER), 30.0, 72.0),
        (ReduceScatter(BUFFER), 15.0, 36.0),
        (AllGatherShards(replace(BUFFER, pad_to=4)), 15.0, 36.0),
        # Every rank ends with four whole buffers.
        (AllGather(BUFFER), 3.0 + 0.25 * 4 * 48, 144.0),
    ],
)
def test_collectives_cost_what_the_cluster_says(op, seconds, wire):
    assert op.cost_s(WHERE, SPAN) == pytest.approx(seconds)
    assert op.wire_bytes(SPAN) == wire
    # A rank hands over its shard when gathering, its whole buffer otherwise.
    assert op.nbytes == (12 if isinstance(op, AllGatherShards) else 48)


def test_compute_is_measured_or_derived():
    where = cluster(1, device=Device("cpu", "example", {"fp32": 10.0}, memory_bytes_per_s=4.0))
    assert Compute("m", 20.0, 8.0).cost_s(where, where.world) == pytest.approx(4.0)
    assert Compute("m", 20.0, 8.0, seconds=0.5).cost_s(where, where.world) == 0.5
    assert Update(("w",), 2, passes=5).cost_s(where, where.world) == pytest.approx(10.0)


def test_an_update_is_shared_by_parameters():
    whole = Update(("a", "b"), 10, seconds=2.0)
    assert whole.of(("a",), 4) == Update(("a",), 4, seconds=0.8)


def test_fusing_keeps_order_and_the_rest():
    other = AllReduce(Buffer("c", (Segment("v", 1, "fp32", "v"),)))
    fused = AllReduce(BUFFER).fuse((other,), "both")
    assert fused.buffer == Buffer("both", (*BUFFER.segments, *other.buffer.segments))


def test_a_base_says_what_is_missing():
    with pytest.raises(TypeError, match="Operation does not say what it costs"):
        Operation().cost_s(WHERE, SPAN)
    with pytest.raises(TypeError, match="Encode does not say how it runs"):
        Encode("w").run(None)
    with pytest.raises(TypeError, match="does not say what was sent"):
        Encode("w").subtract_sent(None, None)
    with pytest.raises(TypeError, match="costs to know what was sent"):
        Encode("w").subtract_sent_s(WHERE, SPAN)


def test_a_changed_operation_is_what_replace_makes():
    op = AllToAll(AllToAll.buffer_of("rows", 12, "fp32"), "moe", "dispatch", 6, 0, 6)
    assert changed(op, begin=2, end=5) == replace(op, begin=2, end=5)
    assert changed(op) == op
