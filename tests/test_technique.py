"""What authors import: knobs, contexts and the helpers of passes."""

from typing import Literal

import pytest

from orch.plan import AllReduce
from orch.technique import (
    Knobs,
    Slot,
    at_least_one,
    choice,
    count,
    dense_sends,
    flag,
    fraction,
    fuse_each_wave,
    number,
    quantity,
)
from orch.testing.small import cluster, context, profile
from orch.units import Bytes, Fraction, Seconds
from orch.workload import data_parallel


class Config(Knobs):
    """One of each."""

    planner: Literal["a", "b"] = choice("a", "a or b")
    size: Bytes = quantity("25MiB", "a size", least=1.0)
    wait: Seconds | None = quantity(None, "a time, or none")
    times: int = count(3, "a count", least=1, most=9)
    decay: float = number(1.0, "a number", least=0.0, most=1.0)
    density: Fraction = fraction(0.001, "a share", above=0.0)
    on: bool = flag(True, "yes or no")


def test_defaults_are_si():
    config = Config()
    assert (config.size, config.wait, config.density) == (25 * 2**20, None, 0.001)
    assert Config(size="1kB", wait="2ms", density="1%").model_dump() | {} == {
        "planner": "a",
        "size": 1000.0,
        "wait": 0.002,
        "times": 3,
        "decay": 1.0,
        "density": 0.01,
        "on": True,
    }


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"size": 25}, "25 has no unit|is not a size"),
        ({"size": "0B"}, "greater than or equal to 1"),
        ({"times": 0}, "greater than or equal to 1"),
        ({"times": True}, "valid integer"),
        ({"times": 2.0}, "valid integer"),
        ({"decay": 1.5}, "less than or equal to 1"),
        ({"decay": float("nan")}, "finite"),
        ({"density": 0.0}, "greater than 0"),
        ({"on": "yes"}, "valid boolean"),
        ({"planner": "c"}, "'a' or 'b'"),
        ({"typo": 1}, "Extra inputs"),
    ],
)
def test_a_wrong_knob_is_refused(knobs, message):
    with pytest.raises(ValueError, match=message):
        Config(**knobs)


def test_passes_run_in_the_order_of_slots():
    assert sorted(Slot, key=lambda slot: slot.rank) == [
        Slot.COMPRESSOR,
        Slot.FEEDBACK,
        Slot.EXCHANGE,
        Slot.SCHEDULE,
        Slot.CODEC,
        Slot.ALL_TO_ALL,
        Slot.EXPERTS,
        Slot.INPUT,
        Slot.SHARING,
    ]


@pytest.mark.parametrize(("value", "kept"), [(0.0, 1), (0.9, 1), (1.0, 1), (2.99, 2), (3.0, 3)])
def test_at_least_one_is_kept(value, kept):
    assert at_least_one(value) == kept


def test_a_context_answers_for_sends():
    model = profile([(4,), (6,)], [1.0, 2.0], [1.0, 1.0])
    where = cluster(2, alpha_s=3.0, beta_s_per_byte=0.5)
    plan = data_parallel(model, 2, 1)
    ask = context(model, where)
    sends = plan.steps[0].of(AllReduce)
    assert ask.ready_s(plan, 0, sends) == [4.0, 5.0]
    assert ask.collective_s(plan, sends[0])(10.0) == 8.0
    assert ask.gradient_bytes(sends[0]) == 24
    assert ask.numel("l1.weight") == 4
    assert [segment.name for _, segment in dense_sends(plan.steps[0])] == ["l2.weight", "l1.weight"]


def test_fusing_groups_each_run_by_itself():
    model = profile([(4,), (6,), (2,)], [1.0] * 3)
    plan = fuse_each_wave(data_parallel(model, 2, 1), lambda plan, step, sends: [1, len(sends)])
    assert [task.name for task in plan.steps[0].of(AllReduce)] == ["all_reduce.b0", "all_reduce.b1"]
    assert [task.op.nbytes for task in plan.steps[0].of(AllReduce)] == [8, 40]
