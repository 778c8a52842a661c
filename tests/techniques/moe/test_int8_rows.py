"""Eight-bit rows: what travels, and that its technique keeps its contract."""

from orch.plan import COUNTS, AllToAll, RecodeRows, check
from orch.testing import mixture, small
from orch.testing.contract import TechniqueContract
from orch.workload import Layout, mixture_training
from techniques.moe import int8_rows


def test_a_row_travels_as_a_byte_a_number_and_its_range() -> None:
    model = mixture.layers(tokens=8, hidden=4, top_k=2)
    plain = mixture_training(model, Layout(4, 4), 1)
    context = small.context(model, mixture.cluster(4))
    plan = check(int8_rows.rewrite(plain, context, int8_rows.Config(rounding="down")), finished=True)
    rows = [task for task in plan.steps[0].of(AllToAll) if task.op.part != COUNTS]
    assert {task.op.nbytes for task in rows} == {8 * 2 * (4 + 8)}
    assert len(plan.steps[0].of(RecodeRows)) == 2 * len(rows) == 8
    assert {task.op.rounding for task in plan.steps[0].of(int8_rows.Pack)} == {"down"}
    # What is packed needs no count; what is sent does.
    names = {task.name: task for task in plan.steps[0]}
    assert names["pack.dispatch.0.moe"].after == ("order.0.moe",)
    assert names["dispatch.0.moe"].after == ("pack.dispatch.0.moe", "counts.0.moe")


class TestInt8Rows(TechniqueContract):
    technique = int8_rows.technique
    worlds = (1, 2)
