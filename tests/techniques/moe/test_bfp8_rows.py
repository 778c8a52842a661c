"""Block floating point: a byte a number and one a block of sixteen."""

from orch.plan import COUNTS, AllToAll, check
from orch.testing import mixture, small
from orch.workload import Layout, mixture_training
from techniques.moe import bfp8_rows


def test_a_row_travels_as_a_byte_a_number_and_one_a_block() -> None:
    model = mixture.layers(tokens=8, hidden=20, top_k=2, capacity=1.0)
    context = small.context(model, mixture.cluster(4))
    plan = check(
        bfp8_rows.rewrite(mixture_training(model, Layout(4, 4), 1), context, bfp8_rows.Config()), finished=True
    )
    assert {t.op.nbytes for t in plan.steps[0].of(AllToAll) if t.op.part != COUNTS} == {8 * 2 * (20 + 2)}
