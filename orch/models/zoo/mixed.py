"""Language models with mixtures that run: those of `orch.models.zoo.language` with the feed-forward part of some blocks
replaced, and transformers' Mixtral. Shapes as there: tokens [B, S] -> logits [B, S, V].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from orch.models.mixture import BertMoeKnobs, CharMoeKnobs, Gpt2MoeKnobs, MixtralKnobs
from orch.models.zoo import language
from orch.models.zoo.mixture import MixtureLayer, mixture_of


class MixedBlock(language.Block):
    """A block of the small transformer with a mixture in place of its two products: [B, S, E] -> [B, S, E]."""

    def __init__(self, hidden: int, num_heads: int, moe: MixtureLayer) -> None:
        super().__init__(hidden, num_heads)
        del self.up, self.down
        self.moe = moe

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the block adds after attention."""
        result: torch.Tensor = self.moe(x)
        return result


def char_moe(knobs: CharMoeKnobs) -> nn.Module:
    """Return the small transformer for characters with mixtures."""
    model = language.CharTransformer(knobs)
    for layer in range(knobs.num_layers):
        if knobs.mixed(layer):
            moe = mixture_of(f"blocks.{layer}.moe", knobs, knobs.seq_len, knobs.hidden, 4 * knobs.hidden)
            model.blocks[layer] = MixedBlock(knobs.hidden, knobs.num_heads, moe)
    return model


def gpt2_moe(knobs: Gpt2MoeKnobs) -> nn.Module:
    """Return transformers' GPT-2 with mixtures."""
    model = language.gpt2(knobs)
    for layer in range(knobs.num_layers):
        if knobs.mixed(layer):
            block = model.get_submodule(f"transformer.h.{layer}")
            name = f"transformer.h.{layer}.mlp"
            block.mlp = mixture_of(name, knobs, knobs.seq_len, knobs.hidden, 4 * knobs.hidden)
    return model


class _Normed(nn.Module):
    """What BERT does after its feed-forward part, of which only the norm is left."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.LayerNorm = norm

    def forward(self, hidden: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.LayerNorm(hidden + before)
        return normed


def bert_moe(knobs: BertMoeKnobs) -> nn.Module:
    """Return transformers' BERT with mixtures."""
    model = language.bert(knobs)
    for layer in range(knobs.num_layers):
        if knobs.mixed(layer):
            block: Any = model.get_submodule(f"bert.encoder.layer.{layer}")
            name = f"bert.encoder.layer.{layer}.intermediate"
            block.intermediate = mixture_of(name, knobs, knobs.seq_len, knobs.hidden, 4 * knobs.hidden)
            block.output = _Normed(block.output.LayerNorm)
    return model


def mixtral(knobs: MixtralKnobs) -> nn.Module:
    """Return transformers' Mixtral, its mixtures ours and so able to be spread."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=knobs.vocab,
        hidden_size=knobs.hidden,
        intermediate_size=knobs.inner,
        num_hidden_layers=knobs.num_layers,
        num_attention_heads=knobs.num_heads,
        num_key_value_heads=knobs.key_value_heads,
        max_position_embeddings=knobs.seq_len,
        # transformers' own experts are replaced at once: the fewest that it can make.
        num_local_experts=1,
        num_experts_per_tok=1,
        use_cache=False,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    model: nn.Module = MixtralForCausalLM(config)
    for layer in range(knobs.num_layers):
        block = model.get_submodule(f"model.layers.{layer}")
        name = f"model.layers.{layer}.mlp"
        block.mlp = mixture_of(name, knobs, knobs.seq_len, knobs.hidden, knobs.inner, gated=True)
    return model
