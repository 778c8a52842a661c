"""Every kind of stack goes on from a checkpoint in other workers as if it had never stopped."""

from __future__ import annotations

from typing import Any

from orch import registry
from orch.gang import make_gang
from orch.models import catalogue
from orch.models.datasets import choose_data
from orch.runtime import keep, session, warmup
from orch.runtime.checkpoint import Saved
from orch.runtime.observe import merge
from orch.runtime.session import StackJob, Subject
from orch.testing import small

SUBJECT = Subject(catalogue.choose(use="mlp"), choose_data("digits8"), 16, {"adam": {"lr": 0.01}})
STACKS = {"ddp": ["torch-ddp"], "dear+power": ["dear", "power-sgd"], "topk": ["top-k"]}


def jobs_of(gang: Any) -> list[StackJob]:
    gang.call(session.prepare, SUBJECT)
    profile = merge(gang.call(warmup.watch, SUBJECT, 0, 2)).profile
    lookup = {name: registry.technique(name) for name in registry.techniques()}
    made = []
    for name, techniques in STACKS.items():
        members = [small.member(lookup[technique]) for technique in techniques]
        plan = small.planned(profile, small.cluster(2, 1e-4, 1e-9), members, lookup, SUBJECT.batch)
        made.append(StackJob(name, SUBJECT, plan, engine=members[0].technique.engine, config=members[0].config))
    return made


def test_a_training_goes_on_in_other_workers_bit_for_bit(tmp_path) -> None:
    root, saved = str(tmp_path), []

    def heard(rank: int, event: Any) -> None:
        saved.extend([event] if isinstance(event, Saved) else [])

    with make_gang("processes", 2) as gang:
        jobs = jobs_of(gang)
        for job in jobs:
            gang.call(session.load, job, on_event=heard)
            gang.call(session.run_block, job.name, 0, 5, on_event=heard)
            assert gang.call(keep.save, job.name, 0, root, job.name, on_event=heard) == [5, 5]
        gang.call(keep.written, on_event=heard)
        # Stacks take turns: what one draws must not move another.
        whole = {job.name: gang.call(session.run_block, job.name, 0, 4)[1].losses for job in jobs}
        prints = {job.name: gang.call(session.fingerprint, job.name, 0) for job in jobs}
        for job in jobs:
            gang.call(session.forget, job.name, 0)
    assert len(saved) == 2 * len(jobs)
    assert not any(event.error for event in saved)
    with make_gang("processes", 2) as other:
        other.call(session.prepare, SUBJECT)
        for job in reversed(jobs):
            other.call(session.load, job)
            assert other.call(keep.restore, job.name, 0, root, job.name) == [None, None]
            assert other.call(session.run_block, job.name, 0, 4)[1].losses == whole[job.name]
            assert other.call(session.fingerprint, job.name, 0) == prints[job.name]
            other.call(session.forget, job.name, 0)
    # Parameters are alike on all ranks and written once; residuals are each rank's own.
    sizes = {name: [(tmp_path / name / f"rank{rank}.safetensors").stat().st_size for rank in (0, 1)] for name in STACKS}
    assert sizes["ddp"][1] < 20_000 < sizes["ddp"][0]
    assert sizes["topk"][1] > 1_000_000


def test_a_damaged_checkpoint_is_told_and_ends_nothing(tmp_path) -> None:
    (tmp_path / "rank0.safetensors").write_bytes(b"\x80\x04K\x01.")
    with make_gang("inline", 1) as gang:
        gang.call(session.prepare, SUBJECT)
        profile = merge(gang.call(warmup.watch, SUBJECT, 0, 1)).profile
        lookup = {name: registry.technique(name) for name in registry.techniques()}
        plan = small.planned(profile, small.cluster(1, 1e-4, 1e-9), [small.member(lookup["wfbp"])], lookup, 16)
        gang.call(session.load, StackJob("s", SUBJECT, plan))
        (problem,) = gang.call(keep.restore, "s", 0, str(tmp_path), ".")
        assert problem.startswith("the checkpoint . cannot be used on rank 0: a checkpoint is damaged")
        (absent,) = gang.call(keep.restore, "s", 0, str(tmp_path), "none")
        assert "No such file" in absent


def test_ranks_that_see_a_place_say_so(tmp_path) -> None:
    (tmp_path / "probe").write_text("token")
    with make_gang("inline", 1) as gang:
        assert gang.call(keep.sees, str(tmp_path), "probe", "token") == [True]
        assert gang.call(keep.sees, str(tmp_path), "probe", "other") == [False]
        assert gang.call(keep.sees, str(tmp_path / "no"), "probe", "token") == [False]
