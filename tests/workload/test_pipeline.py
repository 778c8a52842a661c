"""Pipelines drawn: where a model is cut, what micro-batches take, and that every gradient is sent and updated by its holders."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.cluster import Cluster, Device, Level, Link, Links
from orch.errors import OrchError
from orch.models import catalogue
from orch.models.profile import Module, Profile, Tensor
from orch.plan import AllReduce, Plan, Update, check, from_json, to_json
from orch.plan.stages import HandOver, StageBackward, StageForward
from orch.simulate import simulate
from orch.testing import small
from orch.workload import Layout, cuts_of, pipeline_training
from orch.workload.pipeline import stage_of


def chain(work: list[float], elements: int = 1) -> Profile:
    """Layers of so many FLOPs, each with one tensor."""
    modules = tuple(Module(f"l{n}", flops, elements) for n, flops in enumerate(work))
    tensors = tuple(Tensor(f"l{n}.weight", (2,), (f"l{n}",)) for n in range(len(work)))
    return Profile("chain", modules, tensors, tuple(t.name for t in reversed(tensors)), "made up for an example")


def parts(profile: Profile) -> list[tuple[str]]:
    return [(module.name,) for module in profile.modules]


def layout(profile: Profile, world: int, stages: int, micro_batches: int) -> Layout:
    return replace(Layout(world), cuts=cuts_of(profile, parts(profile), stages), micro_batches=micro_batches)


@given(st.lists(st.integers(1, 9).map(float), min_size=1, max_size=7), st.integers(1, 7))
def test_no_other_cut_has_a_shorter_longest_stage(work: list[float], stages: int) -> None:
    profile = chain(work)
    if stages > len(work):
        with pytest.raises(OrchError, match=f"has {len(work)} parts, which make no {stages} stages"):
            cuts_of(profile, parts(profile), stages)
        return
    cuts = cuts_of(profile, parts(profile), stages)
    assert [name for cut in cuts for name in cut.modules] == [module.name for module in profile.modules]
    longest = max(sum(work[cut.first : cut.last]) for cut in cuts)
    every = combinations(range(1, len(work)), stages - 1)
    bounds = ([0, *inner, len(work)] for inner in every)
    assert longest == min(max(sum(work[a:b]) for a, b in pairwise(one)) for one in bounds)


def test_parameters_of_two_stages_are_refused() -> None:
    tied = replace(chain([1.0, 1.0]), tensors=(Tensor("t", (2,), ("l0", "l1")),), ready_order=("t",))
    with pytest.raises(OrchError, match="two stages would share parameter t of model chain"):
        cuts_of(tied, parts(tied), 2)


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 1), (2, 4), (4, 4), (4, 8)])
def test_stages_of_one_length_leave_the_bubble_of_gpipe(stages: int, micro_batches: int) -> None:
    profile = chain([1.0] * 4)
    profile = replace(profile, modules=tuple(replace(one, forward_s=1.0, backward_s=2.0) for one in profile.modules))
    where = small.cluster(stages).communication_free()
    plan = pipeline_training(profile, layout(profile, stages, stages, micro_batches), 8, update_s=0.0)
    one = 3.0 * 4 / stages / micro_batches  # a micro-batch of a stage, there and back
    assert simulate(plan, where).step_time_s == pytest.approx((micro_batches + stages - 1) * one)


def test_what_is_handed_over_takes_its_time() -> None:
    profile = small.profile([(2,)] * 2, [0.0] * 2, [0.0] * 2)
    profile = replace(profile, modules=tuple(replace(module, activation_elements=10) for module in profile.modules))
    device = Device("cpu", "example", {"fp32": 1e30}, memory_bytes_per_s=1e30)
    where = Cluster("example", 1, 2, device, Links(Link(Level(0.5, 0.25))))
    plan = pipeline_training(profile, layout(profile, 2, 2, 1), 1, update_s=0.0)
    (out, *_) = plan.steps[0].of(HandOver)
    assert out.op.nbytes == 40
    # Activations there, their gradients back, while the loss is told.
    assert simulate(plan, where).step_time_s == pytest.approx(2 * (0.5 + 40 * 0.25))


@pytest.mark.parametrize(("world", "stages"), [(1, 1), (4, 2), (6, 3), (8, 4)])
def test_every_gradient_is_sent_among_the_holders_of_its_stage_and_updated_by_them(world: int, stages: int) -> None:
    chosen = catalogue.choose(use="mlp", arguments={"widths": [8, 8, 8]})
    profile = chosen.profile()
    where = replace(Layout(world), cuts=cuts_of(profile, chosen.parts, stages), micro_batches=2)
    plan: Plan = check(pipeline_training(profile, where, 4), finished=True)
    assert from_json(to_json(plan)) == plan
    assert where.readers == world // stages
    step = plan.steps[0]
    for number, cut in enumerate(where.cuts):
        role = f"stage{number}"
        assert plan.roles[role] == tuple(range(number, world, stages))
        own = stage_of(profile, cut)
        mine = [task for task in step if task.role == role]
        assert [t for task in mine if isinstance(task.op, Update) for t in task.op.tensors] == list(own.ready_order)
        sent = [t for task in mine if isinstance(task.op, AllReduce) for t in task.op.tensors]
        assert sent == (list(own.ready_order) if world > stages else [])
        assert all(task.group == "peers" for task in mine if isinstance(task.op, AllReduce))
        assert sum(isinstance(task.op, StageForward) for task in mine) == 2
        ready = [task.op.ready for task in mine if isinstance(task.op, StageBackward)]
        assert ready == [(), own.ready_order]


@pytest.mark.parametrize("name", ["mlp", "resnet-digits", "tiny-tensors"])
def test_every_module_of_a_model_is_in_one_of_its_parts(name: str) -> None:
    chosen = catalogue.choose(use=name)
    cuts = cuts_of(chosen.profile(), chosen.parts, len(chosen.parts))
    assert [one for cut in cuts for one in cut.modules] == [module.name for module in chosen.profile().modules]
