"""What chunks of a mixture cost, and what its collectives hand over."""

import pytest

from orch.cluster import Span
from orch.plan import AllToAll, Expert, ExpertBackward, GatherRows, Rows, ScatterRows
from orch.testing import mixture

ONE = Span(1)


def test_every_chunk_pays_the_start_ups_of_its_products():
    where = mixture.cluster(4, rate_flops=10.0, launch_s=0.5)
    whole = Expert("moe", 80.0, 0.0, positions=8, begin=0, end=8, products=2)
    assert whole.cost_s(where, ONE) == pytest.approx(1.0 + 8.0)
    assert whole.cut(0, 2, last=False).cost_s(where, ONE) == pytest.approx(1.0 + 2.0)
    back = ExpertBackward("moe", 160.0, 0.0, ready=("w",), positions=8, begin=0, end=8, products=4)
    first, last = back.cut(0, 4, last=False), back.cut(4, 8, last=True)
    assert first.cost_s(where, ONE) == pytest.approx(2.0 + 8.0)
    assert (first.ready, last.ready) == ((), ("w",))


def test_a_measured_chunk_has_its_share_and_every_start_up():
    where = mixture.cluster(4, launch_s=0.5)
    whole = Expert("moe", 80.0, 0.0, seconds=9.0, positions=8, begin=0, end=8, products=2)
    assert whole.cost_s(where, ONE) == 9.0
    assert whole.cut(0, 2, last=False).cost_s(where, ONE) == pytest.approx(1.0 + 8.0 / 4)


def test_rows_are_cut_by_positions_and_serve_no_gradient():
    op = AllToAll(Rows.buffer_of("dispatch", 7 * 6, "bf16"), "moe", "dispatch", 7, 0, 7)
    cut = op.cut(2, 4, name="dispatch.c1")
    assert (op.nbytes, cut.nbytes, cut.tensors, cut.buffer.name) == (84, 24, (), "dispatch.c1")
    assert cut.wire_bytes(Span(4)) == 18.0


def test_gather_and_scatter_are_each_others_inverse_on_the_wire():
    gather = GatherRows(Rows.buffer_of("g", 8, "fp32"), "moe", "gather", 8, 0, 8)
    scatter = ScatterRows(Rows.buffer_of("s", 32, "fp32"), "moe", "scatter", 8, 0, 8)
    assert gather.wire_bytes(Span(4)) == scatter.wire_bytes(Span(4)) == 96.0
    where = mixture.cluster(8, nodes=2, intra=(1.0, 0.5), group=2)
    node = Span(4, 1, 4)
    assert gather.cost_s(where, node) == scatter.cost_s(where, node) == 1.0 + 0.5 * 128
