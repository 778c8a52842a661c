"""Language models that run. Shapes: B batch, S sequence, E hidden, V vocabulary; tokens [B, S] -> logits [B, S, V]."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from orch.models.language import CharTransformerKnobs, LibraryKnobs

_ATTENTION = {"fused": "sdpa", "plain": "eager"}


class Block(nn.Module):
    """A pre-norm transformer block with causal attention: [B, S, E] -> [B, S, E]."""

    def __init__(self, hidden: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1 = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        B, S, _ = x.shape
        query, key, value = self.qkv(self.norm1(x)).view(B, S, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(B, S, -1))
        return x + self.feed_forward(self.norm2(x))

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the block adds after attention."""
        result: torch.Tensor = self.down(F.gelu(self.up(x)))
        return result


class CharTransformer(nn.Module):
    """A small GPT-2: learned positions, pre-norm blocks, head tied to the token embedding."""

    def __init__(self, knobs: CharTransformerKnobs) -> None:
        super().__init__()
        self.tokens = nn.Embedding(knobs.vocab, knobs.hidden)
        self.positions = nn.Embedding(knobs.seq_len, knobs.hidden)
        self.blocks = nn.ModuleList(Block(knobs.hidden, knobs.num_heads) for _ in range(knobs.num_layers))
        self.norm = nn.LayerNorm(knobs.hidden)
        self.head = nn.Linear(knobs.hidden, knobs.vocab, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)  # GPT-2's
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits [B, S, V]."""
        x = self.tokens(tokens)
        # Looked up for every sample, so that a sample's gradient and its cost do not depend on the batch.
        x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens))
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def char_transformer(knobs: CharTransformerKnobs) -> nn.Module:
    """Return the small transformer for characters."""
    return CharTransformer(knobs)


def gpt2(knobs: LibraryKnobs) -> nn.Module:
    """Return transformers' GPT-2 with the language-model head."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=knobs.vocab,
        n_positions=knobs.positions,
        n_embd=knobs.hidden,
        n_layer=knobs.num_layers,
        n_head=knobs.num_heads,
        resid_pdrop=knobs.dropout,
        embd_pdrop=knobs.dropout,
        attn_pdrop=knobs.dropout,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
        attn_implementation=_ATTENTION[knobs.attention],
    )
    model: nn.Module = GPT2LMHeadModel(config)
    return model


def bert(knobs: LibraryKnobs) -> nn.Module:
    """Return transformers' BERT with both pre-training heads."""
    from transformers import BertConfig, BertForPreTraining

    config = BertConfig(
        vocab_size=knobs.vocab,
        max_position_embeddings=knobs.positions,
        hidden_size=knobs.hidden,
        intermediate_size=4 * knobs.hidden,
        num_hidden_layers=knobs.num_layers,
        num_attention_heads=knobs.num_heads,
        hidden_dropout_prob=knobs.dropout,
        attention_probs_dropout_prob=knobs.dropout,
        attn_implementation=_ATTENTION[knobs.attention],
    )
    model: nn.Module = BertForPreTraining(config)
    return model
