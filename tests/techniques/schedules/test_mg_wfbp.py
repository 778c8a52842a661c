"""MG-WFBP against its brief, against brute force, and never worse than the schedules it generalises."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.models.tables import load
from orch.models.vision import PROFILES
from orch.plan import AllReduce
from orch.stack import payload_bytes
from orch.testing.small import cluster, member, planned, profile, step_time_s
from orch.testing.strategies import gradients, profiles
from techniques.schedules import bucketed, mg_wfbp, single_bucket, wfbp
from techniques.schedules.mg_wfbp import exact, greedy, join_small

LOOKUP = {"bucketed": bucketed.technique}


def buckets(plan):
    return [
        tuple(segment.tensor.split(".")[0] for segment in task.op.buffer.segments)
        for task in plan.steps[0].of(AllReduce)
    ]


def example(technique, **knobs):
    """The brief's example: backward [2, 1, 1, 2] in forward order, payloads [4, 1, 1, 1], start-up 2, one a byte."""
    model = profile([(4,), (1,), (1,), (1,)], [2, 1, 1, 2])
    where = cluster(2, alpha_s=2.0, beta_s_per_byte=0.25)
    return planned(model, where, [member(technique, **knobs)], LOOKUP), where


@pytest.mark.parametrize(
    ("technique", "knobs", "ends"),
    [
        (wfbp.technique, {}, 17.0),
        (single_bucket.technique, {}, 15.0),
        (mg_wfbp.technique, {"planner": "greedy"}, 15.0),
        (mg_wfbp.technique, {"planner": "exact"}, 14.0),
    ],
)
def test_worked_example_of_the_brief(technique, knobs, ends):
    plan, where = example(technique, **knobs)
    assert step_time_s(plan, where) == pytest.approx(ends)
    assert payload_bytes(plan) == 28


def test_greedy_merges_as_the_brief_says():
    plan, _ = example(mg_wfbp.technique, planner="greedy")
    assert buckets(plan) == [("l4", "l3", "l2"), ("l1",)]


# --- the brief's table: GoogLeNet on K80s, milliseconds of the step without its forward pass
# ------------------------------

TABLE = {
    8: ((256.9, 64), (412.4, 1), (215.4, 6), (214.9, 6)),
    16: ((318.2, 64), (428.1, 1), (238.2, 6), (234.3, 6)),
    32: ((418.4, 64), (437.0, 1), (260.0, 5), (247.6, 5)),
    64: ((607.5, 64), (443.7, 1), (303.1, 3), (265.8, 5)),
}
STACKS = ((wfbp, {}), (single_bucket, {}), (mg_wfbp, {"planner": "greedy"}), (mg_wfbp, {"planner": "exact"}))


@pytest.mark.parametrize("nodes", TABLE)
def test_table_of_the_brief(nodes):
    model = load(PROFILES / "googlenet-k80")
    forward = sum(module.forward_s for module in model.modules)
    # A ring as the authors count it: 2 N start-ups, (2 beta + gamma) (N - 1) / N a byte.
    beta = (2 * 1.2 / (9 * 2**30 / 8) + 2.5e-9) * (nodes - 1) / nodes
    where = cluster(nodes, alpha_s=2 * nodes * 45.25e-6, beta_s_per_byte=beta)
    for (module, knobs), (milliseconds, count) in zip(STACKS, TABLE[nodes], strict=True):
        plan = planned(model, where, [member(module.technique, **knobs)], LOOKUP)
        assert 1e3 * (step_time_s(plan, where) - forward) == pytest.approx(milliseconds, abs=0.051)
        assert len(plan.steps[0].of(AllReduce)) == count


# --- planners against brute force
# ---------------------------------------------------------------------------------------


def every_grouping(count):
    """All 2^(n-1) ways to cut n gradients in ready order."""
    for cuts in range(count):
        for inner in combinations(range(1, count), cuts):
            yield [*inner, count]


@given(gradients())
def test_no_grouping_ends_sooner(grads):
    ours = grads.ends_at(exact(grads.ready_s, grads.nbytes, grads.cost_s))
    assert ours == pytest.approx(min(map(grads.ends_at, every_grouping(len(grads.nbytes)))))


@given(gradients(max_tensors=40))
def test_greedy_is_never_worse_than_wfbp_or_a_single_bucket(grads):
    count = len(grads.nbytes)
    ends = grads.ends_at(greedy(grads.ready_s, grads.nbytes, grads.cost_s))
    assert ends <= grads.ends_at(list(range(1, count + 1))) + 1e-9
    assert ends <= grads.ends_at([count]) + 1e-9


@given(gradients(max_tensors=40))
def test_exact_is_never_worse_than_greedy(grads):
    best = grads.ends_at(exact(grads.ready_s, grads.nbytes, grads.cost_s))
    assert best <= grads.ends_at(greedy(grads.ready_s, grads.nbytes, grads.cost_s)) + 1e-9


@given(gradients(max_tensors=12))
def test_greedy_is_the_loop_of_the_brief(grads):
    assert greedy(grads.ready_s, grads.nbytes, grads.cost_s) == loop_of_the_brief(grads)


def loop_of_the_brief(grads):
    """The pseudo-code of the brief, literally: layers L..1, start times recomputed after every merge."""
    count = len(grads.nbytes)
    sizes = list(grads.nbytes)  # launch order: index 0 is layer L
    merged = [False] * count

    def starts():
        result, free = [], 0.0
        for index in range(count):
            start = max(free, grads.ready_s[index])
            result.append(start)
            free = start + (0.0 if merged[index] else grads.cost_s(sizes[index]))
        return result

    for index in range(count - 1):
        start, ready = starts()[index], grads.ready_s[index + 1]
        if ready < start + grads.cost_s(sizes[index]) and ready - start < grads.alpha_s:
            sizes[index + 1] += sizes[index]
            sizes[index] = 0.0
            merged[index] = True
    return [index + 1 for index in range(count) if not merged[index]]


def test_ties_go_to_later_cuts():
    # Nothing to gain by waiting and nothing to lose: start-up 0, all ready at once.
    assert exact([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], lambda nbytes: 1.0 * nbytes) == [1, 2, 3]


def test_blocks_of_the_cost_matrix_do_not_show(monkeypatch):
    grads = [float(size) for size in range(1, 60)]
    ready = [0.3 * index for index in range(59)]
    cost = lambda nbytes: 2.0 + 0.02 * nbytes  # noqa: E731
    whole = exact(ready, grads, cost)
    for rows in (1, 7, 1000):
        monkeypatch.setattr(mg_wfbp, "_ROWS", rows)
        assert exact(ready, grads, cost) == whole


# --- knobs
# --------------------------------------------------------------------------------------------------------------


def test_small_buckets_join_the_next():
    assert join_small([1, 2, 4, 5], [10.0, 1.0, 1.0, 1.0, 1.0], 3.0) == [1, 4, 5]
    assert join_small([1, 2], [1.0, 1.0], 100.0) == [2]


def test_it_may_plan_with_other_constants_than_the_cluster_has():
    plan, _ = example(mg_wfbp.technique, planner="greedy", alpha="0s", beta="250ms/B")
    assert buckets(plan) == [("l4",), ("l3",), ("l2",), ("l1",)]


def test_alpha_without_beta_is_refused():
    with pytest.raises(ValueError, match="alpha and beta belong together"):
        mg_wfbp.Config(alpha="1ms")


@given(profiles(), st.integers(2, 4))
def test_every_gradient_is_sent_once_whatever_the_plan(model, world):
    where = cluster(world, alpha_s=2.0, beta_s_per_byte=0.1)
    for module, knobs in STACKS:
        plan = planned(model, where, [member(module.technique, **knobs)], LOOKUP)
        sent = [tensor for group in plan.steps[0].of(AllReduce) for tensor in group.op.buffer.tensors]
        assert tuple(sent) == model.ready_order
        assert payload_bytes(plan) == 4 * model.numel
