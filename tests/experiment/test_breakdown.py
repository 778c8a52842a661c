"""Where the time of a step goes: worked examples, and classes that add up to the step whatever the plan."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orch import registry
from orch.experiment.breakdown import breakdown, measured_breakdowns, opaque, ordered, scaled, title, waits
from orch.plan.timeline import Timeline
from orch.simulate import simulate
from orch.testing.small import cluster, member, planned, profile
from orch.testing.strategies import plans

MODEL = profile([(1,), (2,)], backward_s=[1.0, 2.0], forward_s=[1.0, 1.0])
PLACE = cluster(2, alpha_s=3.0)


def plain():
    return planned(MODEL, PLACE, [member(registry.technique("wfbp"))])


def test_a_step_worked_by_hand() -> None:
    """Forward 2 s, backward 3 s; two all-reduces of 3 s, the first begins 4 s into the step: 5 s of them are exposed."""
    found = breakdown(simulate(plain(), PLACE))
    assert found == {"compute": 5.0, "encode_decode": 0.0, "exposed:net.inter": 5.0, "waiting": 0.0, "overhead": 0.0}


def test_compression_costs_are_a_class_of_their_own() -> None:
    plan = planned(MODEL, PLACE, [member(registry.technique("wfbp")), member(registry.technique("top-k"))])
    slow = replace(PLACE, device=replace(PLACE.device, memory_bytes_per_s=1.0))
    assert breakdown(simulate(plan, slow))["encode_decode"] > 0


def test_a_rank_that_waits_for_a_slower_one_waits() -> None:
    uneven = replace(PLACE, speed={1: 0.5})
    found = breakdown(simulate(plain(), uneven))
    assert found["compute"] == 5.0
    assert found["waiting"] > 0
    assert math.fsum(found.values()) == pytest.approx(simulate(plain(), uneven).step_time_s)


@settings(max_examples=40, deadline=None)
@given(plans(), st.sampled_from([{}, {1: 0.5}]))
def test_the_classes_add_up_to_the_step(plan, speed) -> None:
    place = replace(cluster(plan.world_size, 0.5, 0.25), speed={r: f for r, f in speed.items() if r < plan.world_size})
    timeline = simulate(plan, place)
    found = breakdown(timeline)
    assert math.fsum(found.values()) == pytest.approx(timeline.step_time_s, rel=1e-9, abs=1e-12)
    assert min(found.values()) >= 0


def as_measured(timeline: Timeline, stretch: float = 0.0) -> Timeline:
    """The same as if it had been recorded, every collective having begun `stretch` seconds earlier."""
    earlier = [
        np.array([stretch if task.stream.startswith("net.") else 0.0 for task in timeline.plan.steps[0]])
        for _ in timeline.starts
    ]
    starts = tuple(start - change for start, change in zip(timeline.starts, earlier, strict=True))
    return replace(timeline, starts=starts, mode="measured")


def test_what_a_collective_takes_longer_than_on_the_last_rank_to_join_is_waiting() -> None:
    timeline = simulate(plain(), PLACE)
    first, last = as_measured(timeline, 0.5), as_measured(timeline)
    found = waits([first, last])
    sends = [task.stream.startswith("net.") for task in plain().steps[0]]
    assert [list(times) for times in found] == [[0.5 * send for send in sends]] * len(timeline)
    assert {float(time) for times in waits([last, first]) for time in times} == {0.0}
    parts = breakdown(first, found)
    # Of the two half seconds the first begins under the backward pass, the second under the first collective.
    assert parts["exposed:net.inter"] == pytest.approx(5.0)
    assert parts["waiting"] == pytest.approx(0.0)


def hidden(timeline: Timeline) -> Timeline:
    """As torch's DDP records it: outer ends of forward, backward and update."""
    starts, ends = [np.full(len(times), np.nan) for times in timeline.starts], [times.copy() for times in timeline.ends]
    tasks = list(timeline.plan.steps[0])
    for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
        for number, task in enumerate(tasks):
            if task.stream.startswith("net."):
                end[number] = np.nan
            else:
                start[number] = timeline.starts[index][number]
        last = max(number for number, task in enumerate(tasks) if task.op.kind == "backward")
        end[last] = np.nanmax(timeline.ends[index][: len(tasks) - 1])  # backward returns when all has been sent
    return replace(timeline, starts=tuple(starts), ends=tuple(ends), mode="measured")


def test_an_engine_that_hides_its_collectives_is_judged_by_what_others_computed() -> None:
    timeline = simulate(plain(), PLACE)
    open_ = as_measured(timeline)
    found = measured_breakdowns({"ddp": [hidden(timeline)], "wfbp": [open_]}, {"ddp": 50.0, "wfbp": 50.0})
    assert found["wfbp"]["compute"] == pytest.approx(5.0)
    assert found["ddp"]["compute"] == pytest.approx(5.0)
    assert found["ddp"]["exposed:net.inter"] == pytest.approx(5.0)
    assert math.fsum(found["ddp"].values()) == pytest.approx(math.fsum(found["wfbp"].values()))
    assert measured_breakdowns({"ddp": [None]}, {"ddp": 1.0}) == {}


def test_computing_never_takes_more_than_there_was() -> None:
    found = opaque(hidden(simulate(plain(), PLACE)), 1e9)
    assert found["exposed:net.inter"] == 0.0
    assert min(found.values()) >= 0


def test_recorded_steps_speak_for_all_blocks() -> None:
    found = scaled([{"compute": 1.0, "waiting": 1.0}, {"compute": 3.0, "exposed:net.inter": 1.0}], 8.0)
    assert found == {"compute": 5.0, "exposed:net.inter": 1.0, "waiting": 2.0}
    assert math.fsum(found.values()) == 8.0


def test_classes_have_an_order_and_names_for_people() -> None:
    names = ordered(["overhead", "exposed:net.intra", "compute", "exposed:net.inter", "encode_decode", "waiting"])
    assert [title(name) for name in names] == [
        "compute", "encode/decode", "exposed net.inter", "exposed net.intra", "waiting", "overhead",
    ]  # fmt: skip
