"""The small models that run are what their profiles say, and they learn."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from orch.models.catalogue import model
from orch.models.zoo.trace import trace

VARIANTS: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("resnet-digits", {}, (1, 8, 8)),
    ("resnet-digits", {"depth": 1, "width": 3}, (1, 8, 8)),
    ("resnet-digits", {"depth": 5, "width": 4, "image_size": 7, "channels": 2, "num_classes": 3}, (2, 7, 7)),
    ("mlp", {"widths": (16, 8)}, (1, 8, 8)),
    ("mlp", {"inputs": 5, "widths": (4,), "num_classes": 2}, (5,)),
    ("tiny-tensors", {}, (1, 8, 8)),
    ("tiny-tensors", {"layers": 2, "width": 3}, (64,)),
]


@pytest.mark.parametrize(("name", "changes", "shape"), VARIANTS)
def test_the_profile_is_what_a_trace_sees(name: str, changes: dict[str, Any], shape: tuple[int, ...]) -> None:
    chosen = model(name)
    knobs = chosen.knobs(**changes)
    built = chosen.build(knobs, seed=0)
    traced = trace(built, lambda m: m(torch.randn(2, *shape)).square().sum(), batch=2, name="t", source="t")
    profile = chosen.profile(knobs)
    assert (traced.modules, traced.tensors, traced.ready_order) == (
        profile.modules,
        profile.tensors,
        profile.ready_order,
    )


@pytest.mark.parametrize("name", ["resnet-digits", "mlp", "tiny-tensors"])
def test_every_parameter_gets_a_gradient(name: str) -> None:
    chosen = model(name)
    built = chosen.build(chosen.knobs(), seed=0)
    built(torch.randn(4, 1, 8, 8)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in built.parameters())
