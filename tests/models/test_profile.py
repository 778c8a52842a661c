"""Profiles: tied tensors, backward segments, the splitting rule, JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from orch.errors import OrchError
from orch.models.profile import Module, Profile, Tensor, reverse_ready_order

MODULES = (Module("embed", 0, 8), Module("block", 100, 8), Module("scores", 20, 4), Module("head", 50, 16))
TENSORS = (
    Tensor("embed.weight", (10, 4), ("embed", "head")),
    Tensor("block.weight", (4, 4), ("block",)),
    Tensor("block.bias", (4,), ("block",)),
)


def tied(**changes: object) -> Profile:
    """A language model of three parameter tensors whose head is tied to its embedding."""
    profile = Profile("tied", MODULES, TENSORS, reverse_ready_order(MODULES, TENSORS), "a test")
    return replace(profile, **changes)  # type: ignore[arg-type]


def test_a_tied_tensor_is_ready_when_the_embedding_is_done() -> None:
    assert tied().ready_order == ("block.bias", "block.weight", "embed.weight")
    segments = [([m.name for m in s.modules], [t.name for t in s.tensors]) for s in tied().backward_segments()]
    assert segments == [(["head", "scores", "block"], ["block.bias", "block.weight"]), (["embed"], ["embed.weight"])]


def test_counts() -> None:
    assert (tied().numel, tied().flops, tied().activation_elements) == (60, 170, 36)
    assert tied().module("block").backward_flops == 200


def test_an_observed_order_holds_a_gradient_back() -> None:
    profile = tied(ready_order=("embed.weight", "block.weight", "block.bias"))
    assert [[t.name for t in s.tensors] for s in profile.backward_segments()] == [
        ["embed.weight", "block.weight", "block.bias"]
    ]


def test_a_tensor_that_never_fires_is_named_and_its_modules_still_run() -> None:
    profile = tied(ready_order=("block.bias", "block.weight"))
    assert profile.never_ready == ("embed.weight",)
    assert [m.name for m in profile.backward_segments()[-1].modules] == ["embed"]
    assert profile.backward_segments()[-1].tensors == ()


def test_scaling_follows_the_splitting_rule() -> None:
    scaled = tied().scaled_to(forward_s=1.0, backward_s=2.0)
    assert scaled.measured
    assert not tied().measured
    assert sum(m.forward_s or 0 for m in scaled.modules) == pytest.approx(1.0)
    assert sum(m.backward_s or 0 for m in scaled.modules) == pytest.approx(2.0)
    block, head = 100 / 1e13 + 12 * 8 / 5e11, 50 / 1e13 + 12 * 16 / 5e11
    assert (scaled.module("block").backward_s or 0) / (scaled.module("head").backward_s or 1) == pytest.approx(
        block / head
    )


def test_scaling_keeps_measured_proportions() -> None:
    measured = tied(modules=tuple(replace(m, forward_s=float(i), backward_s=2.0 * i) for i, m in enumerate(MODULES)))
    assert [m.backward_s for m in measured.scaled_to(6.0, 6.0).modules] == pytest.approx([0, 1, 2, 3])


@pytest.mark.parametrize("total", [-1.0, float("nan"), float("inf")])
def test_scaling_refuses_a_total_that_is_no_time(total: float) -> None:
    with pytest.raises(OrchError, match="finite and at least 0"):
        tied().scaled_to(total, 1.0)


def test_json_round_trip() -> None:
    profile = tied().scaled_to(1.0, 2.0)
    assert Profile.from_json(json.loads(json.dumps(profile.to_json()))) == profile


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modules": MODULES + MODULES[:1]}, "module 'embed' appears twice"),
        ({"tensors": TENSORS[:1] * 2}, "tensor 'embed.weight' appears twice"),
        ({"tensors": (Tensor("w", (1,), ("nowhere",)),)}, "names module 'nowhere'"),
        ({"tensors": (Tensor("w", (1,), ()),)}, "names no module"),
        ({"ready_order": ("block.bias", "missing")}, "'missing', which is no tensor"),
        ({"ready_order": ("block.bias", "block.bias")}, "'block.bias' appears twice"),
    ],
)
def test_tables_that_disagree_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(OrchError, match=message):
        tied(**changes)


def test_json_that_is_no_profile_is_refused() -> None:
    with pytest.raises(OrchError, match="not a profile: 'modules'"):
        Profile.from_json({"name": "x"})


def test_profiles_load_neither_torch_nor_numpy() -> None:
    code = "import sys, orch.models.profile; print([m for m in ('torch', 'numpy', 'transformers') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
