"""An engine that does not do what the plan says is caught, whatever it does instead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from orch import registry
from orch.plan import Collective, Plan
from orch.runtime import collectives
from orch.runtime.base import Setup
from orch.runtime.clock import HostClock
from orch.runtime.conformance import differences
from orch.runtime.engine import PlanEngine
from orch.runtime.network import Network
from orch.runtime.optimizers import optimizer_factory
from orch.runtime.record import Record, StepRecord
from orch.stack import apply, arrange
from orch.testing import mixture, small
from orch.workload import Layout, mixture_training
from tests.runtime.models import build
from tests.runtime.test_engine import SGD, loss_of, plan_of
from tests.runtime.test_network import plan_of as stack_of
from tests.runtime.worlds import World, run


def train(world: World, name: str, plan: Plan, sabotage: str) -> list[str]:
    model = build(name)
    engine = PlanEngine(plan, model, Setup(optimizer_factory(SGD), world.rank), world.groups())
    undo = SABOTAGE[sabotage](engine)
    try:
        for step in range(3):
            engine.train_step(lambda module, step=step: loss_of(module, world.rank, step))
        engine.flush()
    finally:
        undo()
    return engine.differences()


def _nothing() -> None:
    return None


def honest(engine: PlanEngine) -> Any:
    return _nothing


def half_the_bytes(engine: PlanEngine) -> Any:
    """Send half of every buffer."""
    whole = collectives.all_reduce
    send = Network._hand_over

    def hand_over(self: Network, op: Any, backend: Any, buffer: Any) -> Any:
        part = buffer.flat[: buffer.flat.numel() // 2]
        return whole(backend, part), part.nbytes

    Network._hand_over = hand_over  # type: ignore[method-assign]
    return lambda: setattr(Network, "_hand_over", send)


def another_order(engine: PlanEngine) -> Any:
    """Launch the first two collectives of a step in the wrong order."""
    for program in engine._programs:
        sends = program.nets[0]
        first, second = sends[0], sends[1]
        first.need = second.need = max(first.need, second.need)
        sends[0], sends[1] = second, first
    return _nothing


def one_twice(engine: PlanEngine) -> Any:
    """Launch one collective twice."""
    for program in engine._programs:
        program.nets[0].insert(1, program.nets[0][0])
    return _nothing


def one_left_out(engine: PlanEngine) -> Any:
    """Leave the last collective out."""
    for program in engine._programs:
        program.nets[0].pop()
        for stage in program.stages:
            stage.waits = tuple((stream, min(place, len(program.nets[0]) - 1)) for stream, place in stage.waits)
    return _nothing


def too_early(engine: PlanEngine) -> Any:
    """Launch a collective before its gradients are there, as they were when the step began."""
    begin = engine.begin_step

    def begin_step() -> None:
        for parameter in engine.parameters.values():
            parameter.grad = parameter.detach().clone()
        begin()

    engine.begin_step = begin_step  # type: ignore[method-assign]
    for program in engine._programs:
        program.nets[0][0].need = 0
    return _nothing


def update_in_the_same_step(engine: PlanEngine) -> Any:
    """Finish every step at once although the plan leaves it to the next one, and then do it again."""
    finish = engine.finish_step

    def finish_step() -> None:
        finish()
        pending = engine._pending
        engine.flush()
        engine._pending = pending

    engine.finish_step = finish_step  # type: ignore[method-assign]
    return _nothing


SABOTAGE = {
    function.__name__: function
    for function in (honest, half_the_bytes, another_order, one_twice, one_left_out, too_early, update_in_the_same_step)
}
FOUND = {
    "half_the_bytes": "bytes; the plan says",
    "another_order": "ran where the plan has",
    "one_twice": "ran 2 times instead of once",
    "one_left_out": "ran 0 times instead of once",
    "too_early": "started before",
}


@pytest.mark.parametrize("sabotage", sorted(FOUND))
def test_sabotage_is_found(sabotage: str) -> None:
    for found in run(2, train, "plain", plan_of("plain", 2, 2), sabotage):
        assert any(FOUND[sabotage] in difference for difference in found), found


def test_work_finished_twice_is_found() -> None:
    plan = stack_of("plain", 2, ("dear", {"bucket": "100B"}))
    for found in run(2, train, "plain", plan, "update_in_the_same_step"):
        assert any("was finished already" in difference for difference in found), found


@pytest.mark.parametrize("stack", ["bucketed", "dear"])
def test_an_honest_engine_conforms(stack: str) -> None:
    plan = stack_of("plain", 2, (stack, {}))
    assert run(2, train, "plain", plan, "honest") == [[], []]


class Swapped(nn.Module):
    """Two layers that change places from step to step."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)
        self.swapped = False

    def forward(self, x: Any) -> Any:
        first, second = (self.right, self.left) if self.swapped else (self.left, self.right)
        return self.last(second(first(x).tanh()).tanh())


def test_a_model_that_runs_in_another_order_is_told() -> None:
    assert all("ran where the plan has" in " ".join(found) for found in run(2, _swap))


def _swap(world: World) -> list[str]:
    import torch

    from orch.runtime.observe import observe
    from orch.workload import data_parallel

    torch.manual_seed(0)
    model = Swapped()
    seen = observe(Swapped(), lambda module: loss_of(module, 0, 0), optimizer_factory(SGD), steps=1, warmup=0)
    plan = data_parallel(seen.profile, world.size, 4)
    engine = PlanEngine(plan, model, Setup(optimizer_factory(SGD), world.rank), world.groups())
    for step in range(4):
        model.swapped = step % 2 == 1
        engine.train_step(lambda module, step=step: loss_of(module, world.rank, step))
    return engine.differences()


def as_planned(plan: Plan) -> tuple[Record, StepRecord, dict[str, int]]:
    """Return the record of a step in which rank 0 did what `plan` says, the step, and the place of each task."""
    record = Record(plan, HostClock())
    step = record.open(0, 0.0, carried=False)
    places = {task.name: number for number, task in enumerate(plan.steps[0])}
    for number, task in enumerate(plan.steps[0]):
        step.order.append(number)
        step.starts[number] = step.ends[number] = float(number)
        if isinstance(task.op, Collective):
            step.sent[number] = step.received[number] = task.op.nbytes
            step.ranks[number] = tuple(plan.groups[task.group].block_of(0))
    return record, step, places


def test_rows_that_do_not_all_come_back_are_found() -> None:
    plan = mixture_training(mixture.layers(), Layout(4, 4), 1)
    record, step, places = as_planned(plan)
    dispatch, combine = places["dispatch.0.moe"], places["combine.0.moe"]
    step.end = 1e3
    # Ragged: another number of rows came than left, and that many went back.
    step.received[dispatch], step.sent[combine] = 96, 96
    assert differences(record, 0) == []
    step.sent[combine] = 80
    assert differences(record, 0) == [
        "step 0: task 'combine.0.moe' handed over 80 bytes and got 256; 'dispatch.0.moe' got 96 and had handed over 256"
    ]
    step.sent[combine], step.sent[dispatch], step.received[combine] = 96, 128, 128
    assert differences(record, 0) == ["step 0: task 'dispatch.0.moe' handed over 128 bytes; the plan says 256"]


def filled(technique: str, **knobs: Any) -> tuple[Record, Any, dict[str, int]]:
    """Return a record in which rank 0 of two nodes of two did what a way of its rows asks, and the places of tasks."""
    model = mixture.layers()
    members = [small.member(registry.technique(technique), **knobs), small.member(registry.technique("wfbp"))]
    where = mixture.cluster(4, nodes=2, alpha_s=1e-3, all_reduce=(1e-3, 0.0))
    plan, _ = apply(
        mixture_training(model, Layout(4, 4), 1), arrange(members, registry.technique), small.context(model, where)
    )
    record = Record(plan, HostClock())
    step = record.open(0, 0.0, carried=False)
    for number, task in enumerate(plan.steps[0]):
        step.order.append(number)
        step.starts[number] = step.ends[number] = float(number)
        if isinstance(task.op, Collective):
            step.sent[number] = step.received[number] = task.op.nbytes
            step.ranks[number] = tuple(plan.groups[task.group].block_of(0))
    step.end = 1e3
    return record, step, {task.name: number for number, task in enumerate(plan.steps[0])}


def test_halves_of_an_exchange_make_its_whole() -> None:
    record, step, places = filled("pipe-a2a")
    near, far = places["dispatch.0.moe.near"], places["dispatch.0.moe"]
    back = places["combine.0.moe.near"]
    step.sent[near], step.sent[far] = step.sent[near] + 16, step.sent[far] - 16
    step.received[back], step.received[places["combine.0.moe"]] = step.sent[near], step.sent[far]
    assert differences(record, 0) == []
    step.sent[far] -= 16
    step.received[places["combine.0.moe"]] -= 16
    assert differences(record, 0) == [
        "step 0: tasks 'dispatch.0.moe' and 'dispatch.0.moe.near' handed over 240 bytes; the plan says 256"
    ]


def test_packed_rows_take_no_more_than_themselves_and_are_held_to_the_plan() -> None:
    record, step, places = filled("zipccl-rows")
    dispatch, combine = places["dispatch.0.moe"], places["combine.0.moe"]
    for place in (dispatch, combine):
        step.sent[place], step.received[place], step.rows[place] = 200, 190, (256, 256)
    for place in (places["combine_backward.0.moe"], places["dispatch_backward.0.moe"]):
        step.rows[place] = (256, 256)
    assert differences(record, 0) == []
    step.sent[dispatch] = 257
    assert differences(record, 0) == ["step 0: task 'dispatch.0.moe' handed over 257 bytes for rows of 256"]
    step.sent[dispatch], step.rows[dispatch], step.rows[combine] = 200, (240, 256), (256, 240)
    assert differences(record, 0) == ["step 0: task 'dispatch.0.moe' handed over 240 bytes; the plan says 256"]


def test_a_relay_passes_on_what_it_got() -> None:
    record, step, places = filled("two-level-a2a")
    inside, across = places["dispatch.0.moe.inside"], places["dispatch.0.moe"]
    step.received[inside] = step.sent[across] = step.received[places["combine.0.moe.across"]] = 96
    step.sent[places["combine.0.moe"]] = 96
    assert differences(record, 0) == []
    step.sent[across] = step.received[places["combine.0.moe.across"]] = 80
    assert differences(record, 0) == ["step 0: task 'dispatch.0.moe' passed on 80 bytes, which is not what came before"]


@pytest.mark.parametrize("group", [1, 2])
def test_turns_together_hand_over_the_rows_there_are(group: int) -> None:
    record, step, places = filled("fastermoe", group=group)
    one, two = (places[f"dispatch.0.moe.t{turn}"] for turn in ((0, 1) if group == 2 else (2, 3)))
    # Ragged: a turn may hand over more than an even share, and gets as much back.
    step.sent[one], step.sent[two] = step.sent[one] + 16, step.sent[two] - 16
    for place in (one, two):
        name = next(task for task, number in places.items() if number == place)
        step.received[places[name.replace("dispatch", "combine")]] = step.sent[place]
    assert differences(record, 0) == []
    step.sent[one] += 96
    step.received[places["combine.0.moe.t0" if group == 2 else "combine.0.moe.t2"]] += 96
    last, most = (
        ("t1", "352 bytes; the plan says 256") if group == 2 else ("t3", "288 bytes; the plan says at most 256")
    )
    assert differences(record, 0) == [f"step 0: the turns of 'dispatch.0.moe.{last}' handed over {most}"]


def test_pieces_in_which_rows_come_back_undo_together_what_brought_them() -> None:
    model = mixture.layers()
    layout = Layout(4, 4, 1, 2)
    members = [
        small.member(registry.technique("parm"), schedule="s2", gathers=2),
        small.member(registry.technique("wfbp")),
    ]
    where = mixture.cluster(4, alpha_s=1e-3, all_reduce=(1e-3, 0.0))
    bare = replace(
        model, modules=tuple(one for one in model.modules if ".moe." in one.name), tensors=(), ready_order=()
    )
    plan, _ = apply(
        mixture_training(bare, layout, 1),
        arrange(members, registry.technique),
        small.context(layout.local(bare), where),
    )
    record, step, places = as_planned(plan)
    step.end = 1e3
    dispatch, first, last = places["dispatch.0.moe"], places["combine.0.moe.c0"], places["combine.0.moe.c1"]
    step.received[dispatch] += 16
    step.sent[first] += 16
    assert not any("handed over" in text for text in differences(record, 0))
    step.sent[last] -= 16
    assert any("the pieces up to 'combine.0.moe.c1' handed over" in text for text in differences(record, 0))
