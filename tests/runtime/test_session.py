"""What a worker does when it is called: stacks train side by side, each from the same seed and data, in blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orch import registry
from orch.gang import make_gang
from orch.models import catalogue
from orch.models.datasets import choose_data
from orch.models.load import Load, added
from orch.plan import cut_crossings
from orch.runtime import session, warmup
from orch.runtime.block import Block
from orch.runtime.observe import merge
from orch.runtime.session import Progressed, StackJob, Subject
from orch.testing import small
from orch.workload import Layout, cuts_of, mixture_training, pipeline_training

SUBJECT = Subject(catalogue.choose(use="mlp"), choose_data("digits8"), 16, {"sgd": {"lr": 0.1, "momentum": 0.9}})
STACKS = {"ddp": "torch-ddp", "wfbp": "wfbp", "mg": "mg-wfbp", "dear": "dear", "acp": "acp-sgd"}
EXACT = ("ddp", "wfbp", "mg", "dear")


@pytest.fixture(scope="module")
def gang() -> Any:
    with make_gang("processes", 2) as made:
        made.call(session.prepare, SUBJECT)
        yield made


@pytest.fixture(scope="module")
def jobs(gang: Any) -> dict[str, StackJob]:
    profile = merge(gang.call(warmup.watch, SUBJECT, 0, 2)).profile
    lookup = {name: registry.technique(name) for name in registry.techniques()}
    made = {}
    for name, technique in STACKS.items():
        member = small.member(lookup[technique])
        plan = small.planned(profile, small.cluster(2, 1e-4, 1e-9), [member], lookup, SUBJECT.batch)
        made[name] = StackJob(name, SUBJECT, plan, engine=member.technique.engine, config=member.config)
    return made


def test_stacks_share_seed_and_data_and_conform(gang: Any, jobs: dict[str, StackJob]) -> None:
    for job in jobs.values():
        gang.call(session.load, job)
    losses: dict[str, list[float]] = {name: [] for name in jobs}
    for order in (list(jobs), list(jobs)[::-1]):
        for name in order:
            blocks: list[Block] = gang.call(session.run_block, name, 0, 6)
            assert all(block.differences == () for block in blocks), name
            assert all(len(block.step_times_s) == 6 and min(block.step_times_s) > 0.0 for block in blocks)
            assert blocks[0].payload_bytes > 0
            # Memory is measured once, where a stack begins.
            assert all(
                block.peak_bytes is None or (not losses[name] and block.peak_bytes > 1 << 16) for block in blocks
            )
            losses[name] += blocks[0].losses
    for name in EXACT:
        assert losses[name] == pytest.approx(losses["ddp"], rel=1e-4)
        prints = gang.call(session.fingerprint, name, 0)
        assert prints[0] == prints[1]
    assert losses["acp"][0] == pytest.approx(losses["ddp"][0])
    assert losses["ddp"][-1] < losses["ddp"][0]
    for name in jobs:
        found, nothing = gang.call(session.evaluate, name, 0)
        assert nothing == {}
        assert 0.0 <= found["accuracy"] <= 1.0
        gang.call(session.forget, name, 0)


def test_a_timeline_shows_the_last_steps(gang: Any, jobs: dict[str, StackJob]) -> None:
    for name in ("mg", "dear"):
        gang.call(session.load, jobs[name])
        gang.call(session.run_block, name, 0, 5)
        timeline = gang.call(session.timeline, name, 0)[0]
        assert timeline.mode == "measured"
        assert timeline.step_time_s > 0.0
        ran = {span.task.name for span in timeline.spans(len(timeline) - 1)}
        assert ran == {task.name for task in timeline.plan.steps[0]}
        gang.call(session.forget, name, 0)


def test_progress_is_told(gang: Any, jobs: dict[str, StackJob]) -> None:
    told: list[tuple[int, Any]] = []
    gang.call(session.load, jobs["wfbp"])
    gang.call(session.run_block, "wfbp", 0, 3, on_event=lambda rank, event: told.append((rank, event)))
    gang.call(session.forget, "wfbp", 0)
    rank, event = told[-1]
    assert rank == 0
    assert isinstance(event, Progressed)
    assert (event.stack, event.step, event.steps) == ("wfbp", 3, 3)
    assert event.samples_per_s > 0.0


def test_stages_of_a_pipeline_train_are_judged_and_told_the_loss(gang: Any) -> None:
    profile = merge(gang.call(warmup.watch, SUBJECT, 0, 1)).profile
    cuts = cuts_of(SUBJECT.model.profile(), SUBJECT.model.parts, 2)
    losses: dict[int, tuple[float, ...]] = {}
    judged = []
    for micro_batches in (1, 4):
        layout = replace(Layout(2), cuts=cuts, micro_batches=micro_batches)
        gang.call(session.load, StackJob("gpipe", SUBJECT, pipeline_training(profile, layout, SUBJECT.batch)))
        blocks: list[Block] = gang.call(session.run_block, "gpipe", 0, 3)
        assert all(block.differences == () for block in blocks)
        assert blocks[0].losses == blocks[1].losses
        losses[micro_batches] = blocks[0].losses
        found, nothing = gang.call(session.evaluate, "gpipe", 0)
        assert nothing == {}
        judged.append(found["loss"])
        gang.call(session.forget, "gpipe", 0)
    assert losses[1] == pytest.approx(losses[4], abs=1e-5)
    assert len(set(losses[1])) == 3
    assert judged[0] == pytest.approx(judged[1], abs=1e-4)
    # A rank at one end of three stages stands on no side of the other link.
    three = replace(Layout(3), cuts=cuts_of(SUBJECT.model.profile(), SUBJECT.model.parts, 3))
    plan = pipeline_training(SUBJECT.model.profile(), three, SUBJECT.batch)
    assert {name: list(ranks) for name, ranks in session.blocks_of(plan, 0).items()} == {
        "world": [0, 1, 2], "stages": [0, 1, 2], "link0": [0, 1],
    }  # fmt: skip


MIXED = Subject(
    catalogue.choose(use="char-moe", arguments={"seq_len": 8, "hidden": 16, "num_heads": 2, "experts": 4}),
    choose_data("pydoc_text"),
    3,
    {"sgd": {"lr": 0.1}},
)


def test_experts_that_are_spread_learn_what_whole_ones_do(gang: Any) -> None:
    gang.call(session.prepare, MIXED)
    profile = replace(merge(gang.call(warmup.watch, MIXED, 0, 1)).profile, mixtures=MIXED.model.mixtures)
    losses: dict[str, tuple[float, ...]] = {}
    held: dict[str, dict[str, float]] = {}
    loads: dict[str, dict[str, Load]] = {}
    for name, experts, degree in (("whole", 1, 1), ("spread", 2, 1), ("cut", 2, 3)):
        plain = mixture_training(profile, Layout(2, experts), MIXED.batch)
        plan = cut_crossings(plain, lambda crossing, degree=degree: degree)
        gang.call(session.load, StackJob(name, MIXED, plan))
        blocks: list[Block] = gang.call(session.run_block, name, 0, 4)
        assert all(block.differences == () for block in blocks), name
        losses[name] = blocks[0].losses
        loads[name] = added(block.loads for block in blocks)
        prints = gang.call(session.fingerprint, name, 0)
        assert prints[0] == prints[1]
        held[name], nothing = gang.call(session.evaluate, name, 0)
        assert nothing == {}
        gang.call(session.forget, name, 0)
    (mixture,) = MIXED.model.mixtures
    routed = 2 * 4 * MIXED.batch * mixture.tokens * mixture.top_k  # ranks, steps
    assert sum(loads["whole"][mixture.name].rows) + loads["whole"][mixture.name].dropped == routed
    for name in ("spread", "cut"):
        assert loads[name] == loads["whole"]
        assert losses[name] == pytest.approx(losses["whole"], rel=1e-4)
        # Each rank judges some of the data, the same for both; whole experts are judged by one rank on all of it.
        assert held[name] == pytest.approx(held["spread"], rel=1e-4)
        assert held[name] == pytest.approx(held["whole"], rel=0.1)
