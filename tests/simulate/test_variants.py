"""Many variants at once: each must be what the simulator says of it by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orch import registry
from orch.cluster import Cluster, Sharing
from orch.plan import Backward, Plan
from orch.simulate import simulate
from orch.simulate.variants import step_times, step_times_of
from orch.testing.small import cluster, member, planned, profile
from orch.testing.strategies import plans

WHERE = cluster(4, alpha_s=2.0, beta_s_per_byte=0.25)
FACTORS = np.array([0.5, 1.0, 3.0])
MODEL = profile([(3, 2), (4,), (5, 2), (1,)], [2.0, 1.0, 3.0, 1.0], [1.0, 1.0, 2.0, 0.5])


def whole(plan: Plan) -> Plan:
    return replace(plan, roles=dict.fromkeys(plan.roles, range(plan.world_size)))


@settings(max_examples=80, deadline=None)
@given(plans())
def test_each_variant_is_what_the_simulator_says(plan: Plan) -> None:
    plan = whole(plan)
    one_by_one = [simulate(plan, WHERE.scaled(per_byte=float(factor))).step_time_s for factor in FACTORS]
    together = step_times(plan, WHERE.scaled(per_byte=FACTORS))
    np.testing.assert_allclose(np.broadcast_to(together, 3), one_by_one, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("stack", [["wfbp"], ["mg-wfbp"], ["dear"], ["acp-sgd"], ["dear", "acp-sgd"], ["power-sgd"]])
@pytest.mark.parametrize("slowdown", [None, 1.0, 1.5])
def test_real_stacks(stack: list[str], slowdown: float | None) -> None:
    plan = planned(MODEL, WHERE, [member(registry.technique(name)) for name in stack])

    def where(factor: object) -> Cluster:
        scaled = WHERE.scaled(start_up=factor)
        return scaled if slowdown is None else replace(scaled, sharing=Sharing(slowdown, 1.2))

    one_by_one = [simulate(plan, where(float(factor))).step_time_s for factor in FACTORS]
    np.testing.assert_allclose(step_times(plan, where(FACTORS)), one_by_one, rtol=1e-9)


@settings(max_examples=40, deadline=None)
@given(plans(), st.floats(1.0, 3.0))
def test_what_shares_runs_on_a_clock_of_each_variant(plan: Plan, slowdown: float) -> None:
    plan = whole(plan)
    several = np.array([1.0, slowdown])
    one_by_one = [simulate(plan, replace(WHERE, sharing=Sharing(float(s), 1.1))).step_time_s for s in several]
    together = step_times(plan, replace(WHERE, sharing=Sharing(several, 1.1)))  # type: ignore[arg-type]
    np.testing.assert_allclose(np.broadcast_to(together, 2), one_by_one, rtol=1e-6, atol=1e-6)


def test_plans_alike_are_simulated_together_as_each_by_itself() -> None:
    models = [profile([(size,), (4,), (size,)], backward_s=[1.0, size, 2.0]) for size in (2, 3, 5)]
    where = cluster(4, 2.0, 0.25).scaled(np.array([1.0, 2.0]), np.array([1.0, 0.5]), 1.0)
    made = [
        planned(model, cluster(4, 2.0, 0.25), [member(registry.technique(name))])
        for model in models
        for name in ("wfbp", "single-bucket", "dear")
    ]
    for plan, found in zip(made, step_times_of(made, where), strict=True):
        assert np.array_equal(found, step_times(plan, where))


def test_measured_compute_is_stretched() -> None:
    plan = planned(MODEL, cluster(1), [member(registry.technique("wfbp"))])
    found = step_times(plan, cluster(1), lambda task: FACTORS if isinstance(task.op, Backward) else 1.0)
    np.testing.assert_allclose(found, 4.5 + 7.0 * FACTORS)


def test_uneven_ranks_are_refused() -> None:
    plan = planned(MODEL, WHERE, [member(registry.technique("wfbp"))])
    with pytest.raises(ValueError, match="even ranks"):
        step_times(plan, replace(WHERE, speed={1: 0.5}))


def test_lanes_are_refused() -> None:
    plan = planned(MODEL, WHERE, [member(registry.technique("wfbp"))])
    with pytest.raises(ValueError, match="collectives have lanes"):
        step_times(plan, replace(WHERE, sharing=Sharing(1.2, 1.1, lanes=2)))
