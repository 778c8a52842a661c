"""S-SGD: nothing is sent before backward has ended."""

import pytest

from orch.plan import AllReduce, Backward
from orch.testing.small import cluster, member, planned, profile, step_time_s
from techniques.schedules import bucketed, s_sgd

LOOKUP = {"bucketed": bucketed.technique}


def test_step_time_is_the_sum_of_everything():
    model = profile([(1,), (1,), (1,)], [1.0, 2.0, 3.0], [0.5] * 3)
    where = cluster(4, alpha_s=10.0, beta_s_per_byte=0.25)
    plan = planned(model, where, [member(s_sgd.technique)], LOOKUP)
    assert step_time_s(plan, where) == pytest.approx(1.5 + 6.0 + 3 * 11.0)
    last = plan.steps[0].of(Backward)[-1].name
    assert all(last in send.after for send in plan.steps[0].of(AllReduce))


def test_one_worker_sends_nothing():
    model = profile([(1,)], [1.0])
    assert planned(model, cluster(1), [member(s_sgd.technique)], LOOKUP).steps[0].of(AllReduce) == ()
