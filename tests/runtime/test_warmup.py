"""What a run measures with its own workers: every figure is there, from every rank."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from orch import registry
from orch.gang import make_gang
from orch.models import catalogue
from orch.models.datasets import choose_data
from orch.plan import RecodeRows
from orch.runtime import session, warmup
from orch.runtime.observe import Observation, merge
from orch.runtime.session import Subject
from orch.stack import apply, arrange
from orch.testing import mixture, small
from orch.workload import Layout, mixture_training, without_peers
from tests.runtime.test_session import MIXED

SUBJECT = Subject(catalogue.choose(use="mlp"), choose_data("digits8"), 16, {"sgd": {"lr": 0.1}})


@pytest.fixture(scope="module")
def gang() -> Any:
    with make_gang("processes", 2) as made:
        made.call(session.prepare, SUBJECT)
        yield made


@pytest.fixture(scope="module")
def seen(gang: Any) -> Observation:
    return merge(gang.call(warmup.watch, SUBJECT, 0, 2))


def test_the_gangs_own_layer_times(seen: Observation) -> None:
    assert seen.profile.measured
    assert seen.step_s > 0.0


def test_links_are_measured_in_the_gang(gang: Any) -> None:
    first, second = gang.call(warmup.measure, 1 << 12, 0.05)
    assert first.ranks == second.ranks == 2
    assert first.seconds["queued"]["all-reduce"]


def test_a_plan_without_peers_is_paced_beside_the_bare_model(gang: Any, seen: Observation) -> None:
    alone = without_peers(small.planned(seen.profile, small.cluster(2), [small.member(registry.technique("wfbp"))]))
    for paces in gang.call(warmup.pace, SUBJECT, 0, [None, alone], 3, 2):
        assert [len(found) for found in paces] == [3, 3]
        assert all(seconds > 0.0 for found in paces for seconds in found)


def test_what_a_technique_computes_is_timed_task_by_task(gang: Any, seen: Observation) -> None:
    plan = small.planned(seen.profile, small.cluster(2), [small.member(registry.technique("acp-sgd"))])
    tasks = {task.name for step in plan.steps for task in step if task.op.kind in ("encode", "decode", "compensate")}
    for found in gang.call(warmup.operations, SUBJECT, 0, without_peers(plan), 4):
        assert tasks <= found.seconds.keys()
        assert 0.0 < min(found.seconds.values()) < found.busy_s
        assert sum(found.seconds.values()) < plan.period * found.busy_s
        assert found.ran_s > 0.0


def test_what_a_codec_computes_is_timed_by_all_ranks_together(gang: Any) -> None:
    profile = replace(merge(gang.call(warmup.watch, MIXED, 0, 1)).profile, mixtures=MIXED.model.mixtures)
    members = [small.member(registry.technique(name)) for name in ("zipccl-rows", "naive-moe")]
    plain = mixture_training(profile, Layout(2, 2), MIXED.batch)
    plan = apply(plain, arrange(members, registry.technique), small.context(profile, mixture.cluster(2)))[0]
    packing = {task.name for task in plan.steps[0].of(RecodeRows)}
    assert packing
    for found in gang.call(warmup.operations, MIXED, 0, plan, 2):
        assert found.seconds.keys() == packing
        assert 0.0 < min(found.seconds.values()) < found.busy_s


def test_every_rank_says_where_it_is_and_how_many_cores_it_fills(gang: Any) -> None:
    places = gang.call(warmup.where)
    assert len({host for host, _, _ in places}) == 1
    assert [count for _, _, count in places] == [1, 1]  # a gang's own threads, where nobody asks for more
    assert all(set(own) <= set(range(os.cpu_count() or 1)) and own for _, own, _ in places)


def test_the_machines_speed_is_that_of_plain_steps(gang: Any) -> None:
    for _ in range(2):  # the second time with the model of the first
        for turns in gang.call(warmup.speed, SUBJECT, 0, 3):
            assert len(turns) == 3
            assert all(0.0 < ran <= end - begin for begin, end, ran in turns)
            assert all(later.begin_s > turn.end_s for turn, later in pairwise(turns))
