"""The language models that run are what their profiles say; the small one looks only back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from orch.models.catalogue import model
from orch.models.zoo.trace import trace

SMALL = {"seq_len": 8, "num_layers": 2, "hidden": 32, "num_heads": 2, "vocab": 50}


def outputs(built: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return a scalar that every head reaches."""
    found: Any = built(tokens)
    if isinstance(found, torch.Tensor):
        return found.sum()
    heads = [getattr(found, head, None) for head in ("logits", "prediction_logits", "seq_relationship_logits")]
    return torch.stack([head.sum() for head in heads if head is not None]).sum()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("char-transformer", {}),
        ("gpt2", {}),
        ("gpt2", {"attention": "plain", "num_heads": 4}),
        ("gpt2-medium", {"num_layers": 1}),
        ("bert-base", {}),
        ("bert-large", {"attention": "plain", "num_layers": 1}),
    ],
)
def test_the_profile_is_what_a_trace_sees(name: str, changes: dict[str, Any]) -> None:
    chosen = model(name)
    knobs = chosen.knobs(**{**SMALL, **changes})
    built = chosen.build(knobs, seed=0)
    tokens = torch.zeros(1, 8, dtype=torch.long)
    # One sample: position embeddings are looked up once a batch, and the profile charges every sample with them.
    traced = trace(built, lambda m: outputs(m, tokens), batch=1, name="t", source="t")
    profile = chosen.profile(knobs)
    assert traced.modules == profile.modules
    assert traced.tensors == profile.tensors
    assert traced.ready_order == profile.ready_order


@pytest.mark.parametrize("name", ["bert-base", "gpt2"])
def test_full_size_models_have_the_tensors_of_their_profiles(name: str) -> None:
    chosen = model(name)
    with torch.device("meta"):
        built = chosen.build(chosen.knobs(), seed=0)
    found = [(parameter, tuple(tensor.shape)) for parameter, tensor in built.named_parameters()]
    assert found == [(tensor.name, tensor.shape) for tensor in chosen.profile(chosen.knobs()).tensors]


def test_the_small_transformer_looks_only_back() -> None:
    chosen = model("char-transformer")
    built = chosen.build(chosen.knobs(**SMALL), seed=0).eval()
    tokens = torch.arange(8)[None]
    changed = tokens.clone()
    changed[0, 5] = 40
    before, after = built(tokens), built(changed)
    assert torch.allclose(before[0, :5], after[0, :5], atol=1e-6)
    assert not torch.allclose(before[0, 5:], after[0, 5:], atol=1e-3)
