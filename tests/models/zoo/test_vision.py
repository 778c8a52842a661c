"""The residual nets that transformers builds are what their profiles say: shapes, both orders, FLOPs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from orch.models.catalogue import model
from orch.models.zoo.trace import trace


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("resnet50", {}),
        ("resnet152", {}),
        ("resnet50", {"image_size": 97, "channels": 1, "width": 8, "depths": (1, 2), "num_classes": 5}),
    ],
)
def test_the_profile_is_what_a_trace_sees(name: str, changes: dict[str, Any]) -> None:
    chosen = model(name)
    knobs: Any = chosen.knobs(**changes)
    with torch.device("meta"):
        built = chosen.build(knobs, seed=0).train()
        images = torch.empty(2, knobs.channels, knobs.image_size, knobs.image_size)
    traced = trace(built, lambda m: m(images).logits.sum(), batch=2, name="t", source="t")
    profile = chosen.profile(knobs)
    assert traced.modules == profile.modules
    assert traced.tensors == profile.tensors
    assert traced.ready_order == profile.ready_order


def test_a_small_one_runs_with_gradients_in_the_order_of_its_profile() -> None:
    chosen = model("resnet50")
    knobs = chosen.knobs(image_size=32, width=4, depths=(1, 1), num_classes=3)
    built = chosen.build(knobs, seed=0)
    images = torch.randn(2, 3, 32, 32)
    traced = trace(built, lambda m: m(images).logits.square().sum(), batch=2, name="t", source="t")
    assert traced.ready_order == chosen.profile(knobs).ready_order
