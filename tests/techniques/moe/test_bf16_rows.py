"""Rows as bf16: half of fp32's bytes travel."""

from orch.plan import COUNTS, AllToAll, check
from orch.testing import mixture, small
from orch.workload import Layout, mixture_training
from techniques.moe import bf16_rows


def test_half_the_bytes_travel_and_one_rank_alone_packs_nothing() -> None:
    model = mixture.layers()
    context = small.context(model, mixture.cluster(4))
    plain = mixture_training(model, Layout(4, 4), 1)
    plan = check(bf16_rows.rewrite(plain, context, bf16_rows.Config()), finished=True)
    before, after = (
        [task.op.nbytes for task in one.steps[0].of(AllToAll) if task.op.part != COUNTS] for one in (plain, plan)
    )
    assert after == [size // 2 for size in before]
    alone = mixture_training(model, Layout(1), 1)
    assert bf16_rows.rewrite(alone, small.context(model, mixture.cluster(1)), bf16_rows.Config()) is alone
