"""The contract every technique keeps, one plan worked by hand, and rounding checked against torch's own."""

from __future__ import annotations

import half_precision
import pytest
import torch
from half_precision import Config, technique
from half_precision_kernels import widened

from orch.stack import payload_bytes
from orch.testing import small
from orch.testing.contract import TechniqueContract


class TestBf16(TechniqueContract):
    technique = technique


class TestFp16(TechniqueContract):
    technique = technique
    knobs = {"format": "fp16", "min_numel": 4}


def test_worked_example() -> None:
    # One layer of 8 fp32 numbers, backward 1 s, all-reduce 2 s + 0.25 s a byte: 11 s before, 1 + 2 + 4 s after.
    model = small.profile([(8,)], backward_s=[1.0])
    where = small.cluster(2, alpha_s=2.0, beta_s_per_byte=0.25)
    before = small.planned(model, where, [])
    after = small.planned(model, where, [small.member(technique)])
    assert (small.step_time_s(before, where), small.step_time_s(after, where)) == pytest.approx((11.0, 7.0))
    assert (payload_bytes(before), payload_bytes(after)) == (32, 16)


def test_short_gradients_and_small_tensors_are_left_alone() -> None:
    model = small.profile([(8,), (2,)], backward_s=[1.0, 1.0])
    where = small.cluster(2, alpha_s=1.0)
    plan = small.planned(model, where, [small.member(technique, min_numel=4)])
    narrowed = [task.op.tensor for task in plan.steps[0].of(half_precision.Narrow)]
    assert narrowed == ["l1.weight"]


def test_rounding_is_torchs_own() -> None:
    gradient = torch.tensor([[1.0, 1.0 + 2.0**-10], [3.0e-5, 1000.5]])
    mean = gradient.flatten().to(torch.bfloat16)
    assert torch.equal(widened(mean, gradient), gradient.bfloat16().float())


def test_only_two_formats() -> None:
    with pytest.raises(ValueError, match="format"):
        Config(format="fp8")
