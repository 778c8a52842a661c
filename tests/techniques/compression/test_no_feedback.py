"""No feedback: the slot is taken, the plan is as the compressor left it."""

from orch.plan import Encode
from orch.testing.small import cluster, member, planned, profile
from techniques.compression import all_gather, error_feedback, no_feedback, top_k
from techniques.schedules import bucketed

LOOKUP = {t.name: t for t in (all_gather.technique, bucketed.technique, error_feedback.technique)}


def test_nothing_is_kept():
    model = profile([(8,)], [1.0])
    plan = planned(model, cluster(2), [member(top_k.technique), member(no_feedback.technique)], LOOKUP)
    assert len(plan.steps[0].of(Encode)) == 1
    assert not any(task.op.state_bytes for task in plan.steps[0])
    assert not any(task.name.startswith(("compensate", "retain")) for task in plan.steps[0])
