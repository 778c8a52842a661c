"""Models with mixtures are what their profiles say: the same tensors, and gradients that come in the same order."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from orch.models.catalogue import model
from orch.models.zoo.mixture import mixture_layers

SMALL = {"seq_len": 8, "num_layers": 2, "hidden": 32, "num_heads": 2, "vocab": 50}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("char-moe", {}),
        ("char-moe", {"every": 1, "capacity": 1.5, "gate": "sigmoid"}),
        ("gpt2-moe", {"experts": 3}),
        ("bert-moe", {}),
        ("char-moe", {"gate": "cosine"}),
        ("bert-moe", {"gate": "expert-choice", "capacity": None}),
        ("bert-moe", {"gate": "soft", "experts": 3}),
        ("mixtral", {"inner": 48, "key_value_heads": 1}),
    ],
)
def test_the_profile_is_what_the_model_does(name: str, changes: dict[str, Any]) -> None:
    chosen = model(name)
    knobs = chosen.knobs(**{**SMALL, **changes})
    built, profile = chosen.build(knobs, seed=0), chosen.profile(knobs)
    found = [(parameter, tuple(tensor.shape)) for parameter, tensor in built.named_parameters()]
    assert found == [(tensor.name, tensor.shape) for tensor in profile.tensors]
    layers = mixture_layers(built)
    assert [layer.mixture for layer in layers.values()] == list(profile.mixtures)
    assert list(layers) == [mixture.name for mixture in profile.mixtures]
    ready: list[str] = []
    for parameter, tensor in built.named_parameters():
        tensor.register_post_accumulate_grad_hook(lambda _, parameter=parameter: ready.append(parameter))
    output = built(torch.arange(8).view(1, 8))
    heads = [getattr(output, head, None) for head in ("logits", "prediction_logits", "seq_relationship_logits")]
    loss = output if isinstance(output, torch.Tensor) else torch.stack([h.sum() for h in heads if h is not None])
    loss.sum().backward()
    own = [tensor for tensor in profile.ready_order if ".experts." in tensor]
    assert [tensor for tensor in ready if tensor not in own] == [t for t in profile.ready_order if t not in own]
    assert sorted(tensor for tensor in ready if tensor in own) == sorted(own)
