"""Knobs and their faults; models that cannot be built."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from orch.errors import OrchError, Position
from orch.models.catalogue import model
from orch.models.language import CharTransformerKnobs, Gpt2Knobs
from orch.models.model import validated
from orch.models.small import MlpKnobs, ResNetDigitsKnobs


@pytest.mark.parametrize(
    ("knobs", "arguments", "message"),
    [
        (ResNetDigitsKnobs, {"widht": 8}, "unknown key 'model.widht'; did you mean width?"),
        (
            ResNetDigitsKnobs,
            {"zzz": 8},
            "unknown key 'model.zzz'; its keys: width, depth, image_size, channels, num_classes",
        ),
        (ResNetDigitsKnobs, {"width": 0}, "model.width: input should be greater than or equal to 1; found 0"),
        (ResNetDigitsKnobs, {"width": True}, "model.width: input should be a valid integer; found True"),
        (ResNetDigitsKnobs, {"width": "8"}, "model.width: input should be a valid integer; found '8'"),
        (
            ResNetDigitsKnobs,
            {"depth": 10**9},
            "model.depth: input should be less than or equal to 256; found 1000000000",
        ),
        (MlpKnobs, {"widths": []}, "model.widths: "),
        (MlpKnobs, {"widths": [8, -1]}, "model.widths.1: input should be greater than or equal to 1; found -1"),
        (CharTransformerKnobs, {"hidden": 30}, "model: hidden 30 is not a multiple of num_heads 4"),
        (Gpt2Knobs, {"seq_len": 2048}, "model: seq_len 2048 is longer than positions 1024"),
        (Gpt2Knobs, {"dropout": 1.0}, "model.dropout: input should be less than 1; found 1.0"),
        (Gpt2Knobs, {"attention": "flash"}, "model.attention: input should be 'fused' or 'plain'; found 'flash'"),
    ],
)
def test_a_wrong_knob_is_one_line(knobs: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(OrchError) as caught:
        validated(knobs, arguments, "model", Position("r.yaml", 2, 8))
    assert str(caught.value).startswith(f"r.yaml:2:8: {message}")
    assert caught.value.code == "E423"
    assert "\n" not in str(caught.value)


def test_knobs_are_frozen_and_documented() -> None:
    for name in ("resnet-digits", "gpt2", "resnet50"):
        knobs = model(name).knobs
        assert all(field.description for field in knobs.model_fields.values())
        with pytest.raises(ValueError, match="frozen"):
            knobs().num_layers = 3  # type: ignore[attr-defined]


def test_a_model_with_only_a_profile_cannot_be_built() -> None:
    chosen = model("vgg16")
    assert not chosen.runs
    with pytest.raises(OrchError, match=r"model vgg16 has only a profile.*not run.*\[E421\]"):
        chosen.build(chosen.knobs(), seed=0)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    chosen = model("gpt2")
    message = r"model gpt2 needs transformers, which is not installed; pip install 'orch\[run\]'"
    with pytest.raises(OrchError, match=message):
        chosen.build(chosen.knobs(), seed=0)


def test_equal_seeds_give_equal_weights_and_leave_the_random_state() -> None:
    import torch

    chosen = model("resnet-digits")
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    first, again, other = (chosen.build(chosen.knobs(), seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["stem.weight"], other["stem.weight"])
