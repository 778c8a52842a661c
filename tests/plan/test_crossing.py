"""Cutting a crossing: chunks cover every position once, in order, and what waited for a stage waits for its last chunk."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from orch.plan import AllReduce, Expert, ExpertBackward, Rows, cells, check, crossings, cut_crossings
from orch.testing import mixture
from orch.workload import Layout, mixture_training


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 9), st.integers(1, 9), st.integers(1, 13), st.sampled_from([None, 1.0, 1.7]), st.sampled_from([1, 2])
)
def test_chunks_cover_every_position_once(there, back, tokens, capacity, slices):
    plain = mixture_training(mixture.layers(tokens=tokens, capacity=capacity), Layout(8, 2, slices), 1)
    plan = check(cut_crossings(plain, lambda crossing: back if crossing.backward else there), finished=True)
    (old,), (new,) = plain.steps, plan.steps
    for kind in (Expert, ExpertBackward):
        chunks = [task.op for task in new.of(kind)]
        assert (chunks[0].begin, chunks[-1].end) == (0, chunks[0].positions)
        assert all(first.end == second.begin and first.begin < first.end for first, second in pairwise(chunks))
        assert abs(max(op.end - op.begin for op in chunks) - min(op.end - op.begin for op in chunks)) <= 1
    parts = {task.op.part for task in old.of(Rows)} - {"counts"}
    for part in parts:
        size = [sum(task.op.nbytes for task in step.of(Rows) if task.op.part == part) for step in (old, new)]
        assert size[0] == size[1]
    covered = cells(new, "0.moe")
    assert (covered[0][0], covered[-1][1]) == (0, new.of(Expert)[0].op.positions)


def test_gradients_wait_for_the_last_chunk():
    plain = mixture_training(mixture.layers(capacity=1.0), Layout(4, 2), 4)
    plan = cut_crossings(plain, lambda crossing: 3)
    sends = [task for task in plan.steps[0].of(AllReduce) if task.group == "replicas"]
    assert sends and all(task.after == ("expert_backward.0.moe.c2",) for task in sends)


def test_uncut_is_the_plan_itself_and_a_cut_crossing_is_not_cut_again():
    plain = mixture_training(mixture.layers(2, capacity=1.0), Layout(4, 4), 1)
    assert cut_crossings(plain, lambda crossing: 1) is plain
    found = list(crossings(plain.steps[0]))
    assert [(crossing.module, crossing.backward) for crossing in found] == [
        ("0.moe", False),
        ("1.moe", False),
        ("1.moe", True),
        ("0.moe", True),
    ]
    cut = cut_crossings(plain, lambda crossing: 2)
    assert not list(crossings(cut.steps[0]))
    assert cut_crossings(cut, lambda crossing: 2) is cut


def test_cut_again_it_is_the_same_tasks():
    plain = mixture_training(mixture.layers(capacity=1.0), Layout(4, 2), 4)
    crossing, other = (
        next(crossings(step)) for step in (*plain.steps, *mixture_training(mixture.layers(), Layout(4, 2), 4).steps)
    )
    assert all(one is two for one, two in zip(crossing.cut(3)[0], crossing.cut(3)[0], strict=True))
    assert crossing.cut(3) != other.cut(3)
