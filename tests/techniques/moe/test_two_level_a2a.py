"""Two-level: two hops that carry every row, the closed form's time, and relays that know what they will pass on."""

import pytest

from orch.cluster import Cluster, Device, Level, Link, Links
from orch.plan import ACROSS, INSIDE, RELAYED, AllToAll, check, cut_crossings
from orch.simulate import simulate
from orch.testing import mixture, small
from orch.workload import Layout, mixture_training
from techniques.moe import two_level_a2a

DEVICE = Device("gpu", "example", {"fp32": 1e30}, memory_bytes_per_s=1e30)
WHERE = Cluster("example", 2, 4, DEVICE, Links(Link(Level(1e-3, 1e-6)), Link(Level(5e-3, 2e-6))))


def rewritten(capacity: float | None):
    model = mixture.layers(tokens=16, experts=8, capacity=capacity)
    plain = mixture_training(model, Layout(8, 8), 1)
    return plain, check(
        two_level_a2a.rewrite(plain, small.context(model, WHERE), two_level_a2a.Config()), finished=True
    )


@pytest.mark.parametrize("capacity", [None, 1.0])
def test_two_hops_take_what_the_closed_form_says(capacity: float | None) -> None:
    _plain, plan = rewritten(capacity)
    legs = {(t.op.part, t.op.leg): t for t in plan.steps[0].of(AllToAll) if t.op.leg in (INSIDE, ACROSS)}
    spans = {span.task.name: span for span in simulate(plan, WHERE).spans(0)}
    for part in ("dispatch", "combine"):
        inside, across = legs[part, INSIDE], legs[part, ACROSS]
        assert inside.group == "neighbours"
        assert across.group == "experts"
        assert inside.op.nbytes == across.op.nbytes
        took = sum(spans[task.name].end_s - spans[task.name].start_s for task in (inside, across))
        assert took == pytest.approx(WHERE.all_to_all_s(across.op.nbytes, WHERE.world, "two-level"))
        out, back = (inside, across) if part == "dispatch" else (across, inside)
        assert out.name in back.after


def test_relays_are_told_of_every_cell_where_no_token_is_dropped() -> None:
    _, plan = rewritten(None)
    cut = check(cut_crossings(plan, lambda crossing: 3 if crossing.backward else 2), finished=True)
    told = {task.op.part: task.op.nbytes for task in cut.steps[0].of(AllToAll) if "counts" in task.op.part}
    # Cut at 5, 8 and 10 of 16 tokens: four cells of eight experts, told as 8-byte numbers.
    assert told == {"counts": 4 * 8 * 8, RELAYED: 4 * 8 * 8}
    assert not [task for task in rewritten(1.0)[1].steps[0].of(AllToAll) if task.op.part == RELAYED]
