"""Steps as one rank runs them: places, needs, waits, roles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orch.errors import RunError
from orch.plan import (
    COMPUTE,
    NET,
    AllReduce,
    Backward,
    Buffer,
    Forward,
    Plan,
    Segment,
    Step,
    Task,
    Update,
    cut_crossings,
)
from orch.runtime.program import BACKWARD, FORWARD, OPERATION, compile_step
from orch.testing import mixture
from orch.workload import Layout, mixture_training


def send(name: str, *after: str, stream: str = NET, lag: int = 0) -> Task:
    return Task(name, AllReduce(Buffer(name, (Segment(name, 1, "fp32", name),))), stream, after, lag=lag)


TASKS = (
    Task("forward.m", Forward("m", 0.0, 0.0)),
    Task("backward.m", Backward("m", 0.0, 0.0, ready=("x", "y"))),
    send("x", "backward.m"),
    send("y", "backward.m", "x", stream="net.intra"),
    Task("update", Update(("x", "y"), 2), after=("x", "y")),
)


def test_names_become_places() -> None:
    program = compile_step(Plan.of("p", 2, TASKS), 0, 0)
    assert [stage.kind for stage in program.stages] == [FORWARD, BACKWARD, OPERATION]
    assert program.stages[1].count == 2
    assert program.forward == {"m": 0}
    assert program.backward == {"x": 1, "y": 1}
    assert program.last_backward == 2
    assert [[s.task.name for s in net] for net in program.nets] == [["x"], ["y"]]
    assert [s.need for net in program.nets for s in net] == [2, 2]
    assert program.nets[1][0].waits == ((0, 0),)
    assert program.stages[2].waits == ((0, 0), (1, 0))
    assert not program.looks_back


def test_work_of_the_step_before_is_listed_in_plan_order() -> None:
    tasks = (send("x", lag=1), Task("update", Update(("x",), 1), after=("x",), lag=1), *TASKS[:2])
    program = compile_step(Plan.of("p", 2, tasks), 0, 0)
    assert [entry.task.name for entry in program.lagging] == ["x", "update"]
    assert program.last_lagging == 1


def test_a_rank_runs_its_own_role() -> None:
    plan = Plan.of("p", 2, TASKS)
    one = Plan("p", 2, plan.steps, {"all": (0,)}, plan.groups)
    assert compile_step(one, 0, 1).stages == []
    assert len(compile_step(one, 0, 0).stages) == 3


@pytest.mark.parametrize("stream", ["host", "copy.h2d", "cpu"])
def test_other_streams_are_refused(stream: str) -> None:
    plan = Plan.of("p", 1, (*TASKS[:2], Task("late", Update(("x", "y"), 2), stream)))
    with pytest.raises(RunError, match=f"'late' is on stream '{stream}', which this engine does not drive"):
        compile_step(plan, 0, 0)


def test_a_net_stream_carries_collectives_only() -> None:
    plan = Plan.of("p", 1, (*TASKS[:2], Task("odd", Update(("x", "y"), 2), NET)))
    with pytest.raises(RunError, match=r"'odd' is on stream 'net\.inter' but is no collective"):
        compile_step(plan, 0, 0)
    assert COMPUTE == "compute"


def test_a_crossing_is_a_run_of_places_and_knows_its_cells() -> None:
    plain = mixture_training(mixture.layers(tokens=6), Layout(4, 4), 1)
    program = compile_step(cut_crossings(plain, lambda crossing: 2 if crossing.backward else 3), 0, 1)
    assert set(program.crossings) == {("0.moe", False), ("0.moe", True)}
    first, last = program.crossings["0.moe", False]
    assert [stage.task.name.split(".")[0] for stage in program.stages[first:last]] == [
        "order",
        *["expert"] * 3,
        "restore",
    ]
    assert program.cells["0.moe"] == ((0, 2), (2, 3), (3, 4), (4, 6))
    assert not any(".experts." in tensor for tensor in program.backward)  # no hook sees gradients that are made by hand


def test_slices_of_experts_and_torn_crossings_are_refused() -> None:
    with pytest.raises(RunError, match="rows are gathered for experts that are cut into slices"):
        compile_step(mixture_training(mixture.layers(), Layout(4, 2, 2), 1), 0, 0)
    plan = mixture_training(mixture.layers(), Layout(4, 4), 1)
    tasks = list(plan.steps[0])
    place = next(index for index, task in enumerate(tasks) if task.name == "restore.0.moe")
    tasks.append(replace(tasks.pop(place), after=()))
    with pytest.raises(RunError, match=r"'restore\.0\.moe' stands apart from its crossing"):
        compile_step(replace(plan, steps=(Step(tuple(tasks)),)), 0, 0)
