"""Shares of attention add up to the whole: the small transformer's and GPT-2's, values and gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from orch.models.catalogue import model
from orch.models.zoo.shards import First, Last, share, shared_parameters


def built(name: str) -> nn.Module:
    chosen = model(name)
    knobs = chosen.knobs(num_layers=1, hidden=16, num_heads=4, seq_len=6, vocab=11)
    found = chosen.build(knobs, 0)
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    return found.eval()


def meet(models: list[nn.Module]) -> Callable[[Tensor], list[Tensor]]:
    """Return what runs the shares one after the other: each is told what the others add."""
    parts: dict[str, list[Tensor]] = {}

    def told(name: str, place: int) -> Callable[[Tensor], Tensor]:
        def path(x: Tensor) -> Tensor:
            found = parts.setdefault(name, [])
            if place == len(found):
                found.append(x.detach())
            return x + sum(part for number, part in enumerate(found) if number != place)

        return path

    for place, one in enumerate(models):
        for name, module in one.named_modules():
            if isinstance(module, First):
                module.path = lambda x: x
            elif isinstance(module, Last):
                module.path = told(name, place)
    return lambda tokens: [output(one, tokens) for one in (*models, *models)][len(models) :]


def output(one: nn.Module, tokens: Tensor) -> Tensor:
    found = one(tokens)
    return found if isinstance(found, Tensor) else found.logits


@pytest.mark.parametrize("name", ["char-transformer", "gpt2"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_shares_add_up_to_the_whole(name: str, ranks: int) -> None:
    whole = built(name)
    models = [copy.deepcopy(whole) for _ in range(ranks)]
    for place, one in enumerate(models):
        share(one, place, ranks)
    tokens = torch.randint(0, 11, (2, 6))
    with torch.no_grad():
        for found in meet(models)(tokens):
            torch.testing.assert_close(found, output(whole, tokens), rtol=1e-5, atol=1e-5)
    names = dict(whole.named_parameters())
    assert {name for name, _ in models[0].named_parameters()} == names.keys()
    for name, parameter in models[0].named_parameters():
        assert parameter.numel() == names[name].numel() // (ranks if name in shared_parameters(models[0]) else 1)
