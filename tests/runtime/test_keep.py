"""Every kind of stack goes on from a checkpoint in other workers as if it had never stopped."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from orch import registry
from orch.gang import make_gang
from orch.models import catalogue
from orch.models.datasets import choose_data
from orch.runtime import keep, session, warmup
from orch.runtime.checkpoint import Saved
from orch.runtime.observe import merge
from orch.runtime.session import StackJob, Subject
from orch.stack import apply, arrange
from orch.testing import mixture, small
from orch.workload import Layout, mixture_training

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


SIZES = {"seq_len": 12, "hidden": 16, "num_heads": 4, "num_layers": 4, "experts": 4, "capacity": 1.0}
SHARED = Subject(
    catalogue.choose(use="char-moe", arguments=SIZES), choose_data("pydoc_text"), 4, {"adam": {"lr": 0.01}}
)
# Each with how many ranks share a sample.
SHARING: dict[str, tuple[int, dict[str, dict[str, Any]]]] = {
    "mast shared": (2, {"mast": {"degree_dense": 2, "degree": 4, "trials": 20}, "dear": {}}),
    "sp-moe": (1, {"sp-moe": {"degree_dense": 3, "degree": 2}, "wfbp": {}}),
    "parm": (2, {"parm": {"schedule": "s2", "gathers": 2}, "wfbp": {}}),
}


def shared_jobs(world: int) -> list[StackJob]:
    """Return stacks whose mixtures are spread over `world` ranks, two of which may share each sample."""
    made = []
    for name, (tensor, members) in SHARING.items():
        profile = SHARED.model.profile(SHARED.data)
        layout = Layout.of(world, profile.mixtures, tensor=tensor)
        where = mixture.cluster(world, alpha_s=1e-4, beta_s_per_byte=1e-6, rate_flops=1e7, all_reduce=(0.0, 1e-6))
        context = small.context(layout.local(profile), where, batch=SHARED.batch)
        stack = [small.member(registry.technique(one), **knobs) for one, knobs in members.items()]
        plain = mixture_training(profile, layout, SHARED.batch)
        plan, _ = apply(plain, arrange(stack, registry.technique), context)
        made.append(StackJob(name, SHARED, plan))
    return made


def everything(worker: Any, stack: str) -> str:
    """Return the SHA-256 of all that this rank holds, its experts and heads included."""
    engine = session.training_of(worker, stack, 0).engine
    engine.flush()
    parameters = sorted(engine.model.named_parameters())
    return hashlib.sha256(b"".join(value.detach().numpy().tobytes() for _, value in parameters)).hexdigest()


def check_shared(world: int, root: Path) -> None:
    """Assert that stacks which share models out go on from checkpoints in other workers bit for bit."""
    jobs = shared_jobs(world)
    whole, prints = {}, {}
    with make_gang("processes", world) as gang:
        gang.call(session.prepare, SHARED)
        for job in jobs:
            gang.call(session.load, job)
            gang.call(session.run_block, job.name, 0, 3)
            gang.call(keep.save, job.name, 0, str(root), job.name)
            blocks = gang.call(session.run_block, job.name, 0, 3)
            assert [block.differences for block in blocks] == [()] * world
            whole[job.name] = [block.losses for block in blocks]
            prints[job.name] = gang.call(everything, job.name)
        gang.call(keep.written)
    with make_gang("processes", world) as other:
        other.call(session.prepare, SHARED)
        for job in reversed(jobs):
            assert len(set(prints[job.name])) == world
            other.call(session.load, job)
            assert other.call(everything, job.name) != prints[job.name]
            assert other.call(keep.restore, job.name, 0, str(root), job.name) == [None] * world
            assert [block.losses for block in other.call(session.run_block, job.name, 0, 3)] == whole[job.name]
            assert other.call(everything, job.name) == prints[job.name]


def test_ranks_that_hold_different_parts_go_on_bit_for_bit(tmp_path: Path) -> None:
    check_shared(2, tmp_path)


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
