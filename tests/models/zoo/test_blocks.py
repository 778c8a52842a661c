"""Blocks in parts: chunk after chunk they give what the block gives whole, to the last digits of fp64, gradients too."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from orch.models.mixture import BertMoeKnobs, CharMoeKnobs, Gpt2MoeKnobs, MixtralKnobs
from orch.models.zoo import mixed
from orch.models.zoo.blocks import Past, blocks_of

SMALL: dict[str, Any] = {"seq_len": 12, "hidden": 16, "num_heads": 4, "vocab": 64}
MODELS: dict[str, Any] = {
    "char": lambda: mixed.char_moe(CharMoeKnobs(**SMALL, num_layers=4)),
    "gpt2": lambda: mixed.gpt2_moe(Gpt2MoeKnobs(**SMALL, num_layers=3, positions=16, capacity=None)),
    "mixtral": lambda: mixed.mixtral(MixtralKnobs(**SMALL, num_layers=2, key_value_heads=2, inner=32)),
    "bert": lambda: mixed.bert_moe(BertMoeKnobs(**SMALL, num_layers=2, positions=16, capacity=None)),
}


def attended(block, x, rotary, cuts):
    """Attention chunk by chunk, keys and values handed on."""
    pasts: list[Past] = []
    found = []
    for first, last in pairwise(cuts):
        before = [tuple(torch.cat([past.made[0][part] for past in pasts], 2) for part in (0, 1))] if pasts else []
        turned = None if rotary is None else tuple(part[:, first:last] for part in rotary)
        pasts.append(Past(before, causal=block.causal, rotary=turned))
        found.append(block.attend(x[:, first:last], pasts[-1]))
    return torch.cat(found, 1)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("cuts", [(0, 12), (0, 5, 12), (0, 1, 2, 9, 12)])
def test_chunks_of_attention_are_the_whole(name, cuts):
    torch.manual_seed(0)
    model = MODELS[name]().double()
    blocks = blocks_of(model)
    assert blocks[-1].mixture is not None
    if not blocks[0].causal:
        cuts = (0, 12)
    seen: list[Any] = []
    for block in blocks:
        block.module.register_forward_hook(lambda *call: seen.append(call[1:]), with_kwargs=True)
    model(torch.randint(0, 64, (3, 12)))
    for block, (args, kwargs, whole) in zip(blocks, seen, strict=True):
        x = args[0].detach().requires_grad_()
        h = attended(block, x, kwargs.get("position_embeddings"), cuts)
        tokens = block.feed(h)
        y = block.dense(tokens) if block.mixture is None else block.mixture(tokens)
        assert (block.close(h, y) - whole).abs().max() < 1e-12
        once = attended(block, x, kwargs.get("position_embeddings"), (0, 12))
        for one, other in zip(*(torch.autograd.grad(out.square().sum(), x) for out in (h, once)), strict=True):
            assert (one - other).abs().max() < 1e-12


def test_other_models_have_no_blocks_that_are_known():
    assert blocks_of(torch.nn.Sequential(torch.nn.Linear(2, 2))) == []
