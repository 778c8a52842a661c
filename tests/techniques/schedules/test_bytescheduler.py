"""ByteScheduler: how gradients are cut, in which order parts go, and what runs under the next forward."""

from __future__ import annotations

import pytest
import torch

from orch.plan import AllGatherShards, AllReduce, ReduceScatter, Update
from orch.stack import payload_bytes
from orch.testing.lockstep import Lockstep
from orch.testing.small import cluster, member, planned, profile, step_time_s
from techniques.schedules import bucketed, bytescheduler, s_sgd, wfbp
from techniques.schedules.bytescheduler import turns

LOOKUP = {"bucketed": bucketed.technique}
MODEL = profile([(10,), (3, 3), (1,)], [1.0] * 3, [1.0] * 3)


def plan_of(where=None, model=MODEL, **knobs):
    return planned(model, where or cluster(2), [member(bytescheduler.technique, **knobs)], LOOKUP)


def part(ready_s: float, urgency: int, nbytes: int = 1, seconds: float = 1.0):
    return bytescheduler._Part((), ready_s, urgency, nbytes, seconds)


@pytest.mark.parametrize(
    ("credit", "expected"),
    [
        # Ready at 0, 0, 0, 1.5: the urgent one overtakes what is not handed over yet.
        (1, [0, 1, 3, 2]),
        (2, [0, 1, 2, 3]),  # two under way until 1 s, then the third follows at once: at 1.5 s all three are gone
        (9, [0, 1, 2, 3]),
    ],
)
def test_what_is_handed_over_is_not_overtaken(credit, expected):
    assert turns([part(0.0, 1), part(0.0, 1), part(0.0, 1), part(1.5, 0)], credit) == expected


def test_the_more_urgent_goes_first_and_equals_in_order():
    assert turns([part(0.0, 2), part(0.0, 0), part(0.0, 1), part(0.0, 0)], 1) == [1, 3, 2, 0]
    assert turns([part(5.0, 0), part(0.0, 9)], 1) == [1, 0]
    assert turns([], 1) == []


def test_a_gradient_is_cut_into_parts_with_a_smaller_last_one():
    step = plan_of(partition="16B").steps[0]
    segments = [task.op.buffer.segments[0] for task in step.of(AllReduce)]
    assert {(s.tensor, s.begin, s.numel) for s in segments} == {
        ("l1.weight", 0, 4), ("l1.weight", 4, 4), ("l1.weight", 8, 2),
        ("l2.weight", 0, 4), ("l2.weight", 4, 4), ("l2.weight", 8, 1), ("l3.weight", None, 1),
    }  # fmt: skip
    assert payload_bytes(plan_of(partition="16B")) == payload_bytes(plan_of()) == 80


def test_the_first_layers_overtake_and_each_layer_is_updated_just_before_it_is_read():
    # Backward ends at 1, 2, 3 s after forward; a part takes 1 s: l3 at once, of l2 one part, then all of l1.
    step = plan_of(cluster(2, alpha_s=1.0), partition="16B", credit="1B").steps[0]
    sent = [task.op.buffer.segments[0] for task in step.of(AllReduce)]
    assert [(s.tensor[:2], s.begin) for s in sent] == [
        ("l3", None), ("l2", 0), ("l1", 0), ("l1", 4), ("l1", 8), ("l2", 4), ("l2", 8)
    ]  # fmt: skip
    order = [task.name for task in step.stream("compute")]
    assert order[:6] == ["update.g0", "forward.l1", "update.g1", "forward.l2", "update.g2", "forward.l3"]
    assert [task.after_previous for task in step.of(Update)] == [
        ("all_reduce.l1.weight@8",),
        ("all_reduce.l2.weight@8",),
        ("all_reduce.l3.weight",),
    ]


def test_worked_example_the_next_forward_runs_under_what_is_left():
    # Forward 1 + 1 s, backward 1 + 1 s, an all-reduce 2 s each (l2 from 3 to 5 s, l1 from 5 to 7 s): with one barrier
    # 7 s a step. Without: l1 is there at 7, forward of l1 then runs, and nothing is left to hide.
    model = profile([(1,), (1,)], [1.0] * 2, [1.0] * 2)
    where = cluster(2, alpha_s=2.0)
    assert step_time_s(planned(model, where, [member(wfbp.technique)], LOOKUP), where) == pytest.approx(7.0)
    assert step_time_s(plan_of(where, model), where) == pytest.approx(7.0)
    # The last layer is the large one: 4 parts of 2 s from 3 s on. That of l1, ready at 4 s, waits for one of them only and
    # ends at 7; then forward l1 to 8, the last parts until 13, forward l2 to 14, backward to 16: 16 - 4 = 12 a step, 13 with
    # a barrier, which forward and backward come on top of.
    late = profile([(1,), (4,)], [1.0] * 2, [1.0] * 2)
    assert step_time_s(plan_of(where, late, partition="4B", credit="4B"), where) == pytest.approx(12.0)
    assert step_time_s(plan_of(where, late, partition="4B", credit="1GB"), where) == pytest.approx(13.0)


def test_through_a_server_each_part_is_pushed_and_pulled():
    step = plan_of(cluster(3), partition="16B", through="parameter-server").steps[0]
    names = [task.name for task in step if task.stream == "net.inter"]
    pushes, pulls = step.of(ReduceScatter), step.of(AllGatherShards)
    assert names == [name for pair in zip(pushes, pulls, strict=True) for name in (pair[0].name, pair[1].name)]
    assert {push.op.buffer.pad_to for push in pushes} == {3}
    assert not step.of(AllReduce)


def test_a_model_that_sends_nothing_is_left_alone():
    plan = plan_of(cluster(1))
    assert plan == planned(MODEL, cluster(1), [member(wfbp.technique)], LOOKUP)


@pytest.mark.parametrize("through", ["all-reduce", "parameter-server"])
def test_it_ends_with_the_bits_of_plain_sgd(through):
    where = cluster(3, alpha_s=1.0)
    plain = Lockstep(planned(MODEL, where, [member(s_sgd.technique)], LOOKUP), MODEL).run(4)
    cut = Lockstep(plan_of(where, partition="16B", credit="4B", through=through), MODEL).run(4)
    for name, value in plain.ranks[0].parameters.items():
        assert torch.equal(cut.ranks[0].parameters[name], value)
