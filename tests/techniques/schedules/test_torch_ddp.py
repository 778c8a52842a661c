"""torch-ddp's plan against torch's own bucket assignment."""

import pytest

from orch.errors import OrchError
from orch.plan import AllReduce
from orch.stack import arrange, engine, is_lossless, payload_bytes
from orch.testing.small import cluster, member, planned, profile
from techniques.schedules import bucketed, torch_ddp

LOOKUP = {"bucketed": bucketed.technique}
SHAPES = [(64, 3), (1000,), (17, 17), (1,), (300, 40), (128,), (90, 90)]


@pytest.mark.parametrize(("first", "cap"), [(1 << 20, 25 << 20), (1000, 4000), (1, 1), (40_000, 20_000)])
def test_buckets_equal_those_torch_would_make(first, cap):
    torch = pytest.importorskip("torch")
    import torch.distributed as dist

    model = profile(SHAPES, [1.0] * len(SHAPES))
    knobs = {"bucket_cap": f"{cap}B", "first_bucket": f"{first}B"}
    plan = planned(model, cluster(2), [member(torch_ddp.technique, **knobs)], LOOKUP)
    ours = [task.op.buffer.tensors for task in plan.steps[0].of(AllReduce)]
    ready = [model.tensor(name) for name in model.ready_order]
    gradients = [torch.empty(tensor.shape) for tensor in ready]
    indices, _ = dist._compute_bucket_assignment_by_size(gradients, [first, cap], [], list(range(len(ready))))
    assert ours == [tuple(ready[index].name for index in bucket) for bucket in indices]


def test_a_hook_halves_the_payload_and_is_lossy():
    model = profile(SHAPES, [1.0] * len(SHAPES))
    plain = planned(model, cluster(2), [member(torch_ddp.technique)], LOOKUP)
    hooked = planned(model, cluster(2), [member(torch_ddp.technique, hook="bf16")], LOOKUP)
    assert payload_bytes(hooked) * 2 == payload_bytes(plain)
    assert is_lossless([member(torch_ddp.technique)])
    assert not is_lossless([member(torch_ddp.technique, hook="bf16")])


def test_it_brings_its_own_engine():
    assert engine(arrange([member(torch_ddp.technique)], LOOKUP.__getitem__)) == torch_ddp.technique.engine


def test_an_unknown_hook_is_refused():
    with pytest.raises(ValueError, match="hook"):
        member(torch_ddp.technique, hook="int4")
    assert issubclass(OrchError, Exception)


LARGE = [(64, 48), (48,), (40, 64), (2, 2)]


def test_power_sgd_sends_the_rest_and_then_the_factors_of_what_is_worth_it():
    model = profile(LARGE, [1.0] * len(LARGE))
    plan = planned(model, cluster(2), [member(torch_ddp.technique, hook="power-sgd", rank=2)], LOOKUP)
    sends = {task.name: task.op.nbytes for task in plan.steps[0].of(AllReduce)}
    dense, p, q = 4 * (48 + 4), 4 * 2 * (64 + 40), 4 * 2 * (48 + 64)
    assert sorted(sends.values()) == sorted([dense, p, q])
    assert not is_lossless([member(torch_ddp.technique, hook="power-sgd")])


def test_power_sgd_in_several_buckets_is_refused_where_gloo_serves():
    model = profile(LARGE, [1.0] * len(LARGE))
    knobs = {"hook": "power-sgd", "bucket_cap": "1KiB", "first_bucket": "1KiB"}
    with pytest.raises(OrchError, match="cannot run 2 buckets on gloo") as caught:
        planned(model, cluster(2), [member(torch_ddp.technique, **knobs)], LOOKUP)
    assert (caught.value.code, "of 1MiB or more" in caught.value.hint) == ("E514", True), caught.value.hint


def test_a_rank_without_its_hook_is_refused():
    with pytest.raises(ValueError, match="rank 8 is of hook power-sgd"):
        member(torch_ddp.technique, rank=8)
