"""Naive: nothing runs beside anything, and gradients come after all of backward."""

import pytest

from orch.errors import OrchError
from orch.plan import AllReduce, AllToAll, Expert, check
from orch.simulate import simulate
from orch.testing import mixture, small
from orch.workload import Layout, mixture_training
from techniques.moe import int8_rows, naive_moe, pipemoe


def test_gradients_are_sent_after_backward_and_layers_stay_whole():
    model = mixture.layers(2)
    where = mixture.cluster(4, alpha_s=1.0, all_reduce=(0.5, 0.0), rate_flops=1e3)
    plain = mixture_training(model, Layout(4, 4), 1)
    context = small.context(model, where)
    plan = check(naive_moe.rewrite(plain, context, naive_moe.Config()), finished=True)
    net = plan.steps[0].stream("net.inter")
    kinds = [type(task.op) for task in net]
    assert kinds == sorted(kinds, key=[AllToAll, AllReduce].index)
    assert len(plan.steps[0].of(Expert)) == 2
    serial = sum(span.end_s - span.start_s for span in simulate(plan, where).spans(0))
    assert simulate(plan, where).step_time_s == pytest.approx(serial)
    assert simulate(pipemoe.rewrite(plan, context, pipemoe.Config()), where).step_time_s <= serial * (1 + 1e-9)


def test_gathered_first_every_row_is_exchanged_once_a_slice():
    # Parm brief, section 3: gather, exchange and all-reduce of ETM N_ESP each.
    model = mixture.layers(1, tokens=16, experts=4, capacity=1.0)
    where = mixture.cluster(8, alpha_s=1.0, rate_flops=1e3, nodes=4, group=4, intra=(0.5, 0.0))
    plain = mixture_training(model, Layout(8, 4, 2), 1)
    context = small.context(model.spread(4, 2), where)
    plan = check(naive_moe.rewrite(plain, context, naive_moe.Config(gather="first")), finished=True)
    moved = [task for task in plan.steps[0] if task.group in ("experts", "slices")]
    assert [task.op.kind for task in moved] == [
        "gather_rows", "all_to_all", "sum_rows", "all_to_all", "gather_rows", "all_to_all", "all_to_all", "scatter_rows"
    ]  # fmt: skip
    whole = next(task.op.nbytes for task in plain.steps[0].of(AllToAll))
    assert [task.op.nbytes // whole for task in moved] == [1, 2, 2, 2, 1, 2, 2, 2]
    assert simulate(plan, where).step_time_s > 0


def test_a_codec_is_refused_where_rows_are_gathered_first():
    model = mixture.layers(1, tokens=16, experts=4, capacity=1.0)
    where = mixture.cluster(8, alpha_s=1.0, rate_flops=1e3, nodes=4, group=4, intra=(0.5, 0.0))
    context = small.context(model.spread(4, 2), where)
    coded = int8_rows.rewrite(mixture_training(model, Layout(8, 4, 2), 1), context, int8_rows.technique.config())
    with pytest.raises(OrchError, match="a codec changes those of"):
        naive_moe.rewrite(coded, context, naive_moe.Config(gather="first"))
    check(naive_moe.rewrite(coded, context, naive_moe.Config()), finished=True)
