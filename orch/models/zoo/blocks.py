"""Transformer blocks as parts that can be run chunk by chunk: attention, what follows it token by token, and the residual.

A block here is x -> h (`attend`, residual added), h -> tokens (`feed`), tokens -> y (its feed-forward part, or a mixture), and
(h, y) -> x of the next (`close`). Its attention is x -> tokens (`enter`), tokens -> heads (`heads`), the product `last`, and back
to the residual (`leave`): ranks that share heads meet in front of `heads` and behind `last`. What attention needs of earlier
tokens it gets from a `Past`.

Shapes: B samples, S tokens of a chunk, P tokens before it, H heads, D their width, M the model's width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from orch.models.zoo import language
from orch.models.zoo.mixture import MixtureLayer


class Past:
    """What the attentions of one chunk know of the tokens before it, in the order in which they run, and what they leave to
    later chunks.

    `before` holds keys and values [B, H, P, D] of each attention, none where the chunk is the first. `causal`: a token looks
    at no later one. `rotary`: cosines and sines [B or 1, S, D] of the chunk's positions, for models that turn their heads.
    """

    def __init__(
        self, before: Sequence[tuple[Tensor, Tensor]], *, causal: bool, rotary: tuple[Tensor, Tensor] | None = None
    ) -> None:
        self._before: Iterator[tuple[Tensor, Tensor]] = iter(before)
        self._first = not before
        self._causal = causal
        self.rotary = rotary
        self.made: list[tuple[Tensor, Tensor]] = []

    def attention(self, query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0) -> Tensor:
        """Return what each token of the chunk [B, H, S, D] finds in the tokens up to it."""
        self.made.append((key, value))
        mask = None
        if not self._first:
            key, value = (torch.cat(pair, 2) for pair in zip(next(self._before), (key, value), strict=True))
            if self._causal:
                S, P = query.shape[2], key.shape[2] - query.shape[2]
                # Aligned at the lower right: `is_causal` alone would align at the upper left.
                mask = torch.ones(S, P + S, dtype=torch.bool, device=query.device).tril(P)
        if key.shape[1] != query.shape[1]:
            key, value = (part.repeat_interleave(query.shape[1] // part.shape[1], 1) for part in (key, value))
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=self._causal and mask is None
        )


class Block:
    """A pre-norm block of the small transformer; other kinds change its parts."""

    causal = True

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = module

    @property
    def mixture(self) -> MixtureLayer | None:
        """Its mixture, None where its feed-forward part is dense."""
        found = getattr(self.module, "moe", None)
        return found if isinstance(found, MixtureLayer) else None

    def attend(self, x: Tensor, past: Past) -> Tensor:
        """Return x and what attention adds to it [B, S, M]."""
        return self.leave(x, self.last(self.heads(self.enter(x), past)))

    def enter(self, x: Tensor) -> Tensor:
        """Return what attention is given [B, S, M]."""
        normed: Tensor = self.module.norm1(x)
        return normed

    def heads(self, tokens: Tensor, past: Past) -> Tensor:
        """Return what the heads find in the tokens, side by side [B, S, H D]."""
        block = self.module
        B, S, _ = tokens.shape
        query, key, value = block.qkv(tokens).view(B, S, 3, block.num_heads, -1).permute(2, 0, 3, 1, 4)
        return _joined(past.attention(query, key, value))

    @property
    def last(self) -> Any:
        """The product behind the heads."""
        return self.module.out

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the residual stream behind attention, from the one in front of it and what attention gave."""
        return x + y

    def feed(self, h: Tensor) -> Tensor:
        """Return what the feed-forward part, or a mixture, is given [B, S, M]."""
        normed: Tensor = self.module.norm2(h)
        return normed

    def dense(self, tokens: Tensor) -> Tensor:
        """Return what a dense feed-forward part makes of `tokens`."""
        made: Tensor = self.module.feed_forward(tokens)
        return made

    def close(self, h: Tensor, y: Tensor) -> Tensor:
        """Return the block's output from both of its parts."""
        return h + y


class Gpt2Block(Block):
    """A block of transformers' GPT-2."""

    @property
    def mixture(self) -> MixtureLayer | None:
        found = self.module.mlp
        return found if isinstance(found, MixtureLayer) else None

    def enter(self, x: Tensor) -> Tensor:
        normed: Tensor = self.module.ln_1(x)
        return normed

    def heads(self, tokens: Tensor, past: Past) -> Tensor:
        attn = self.module.attn
        query, key, value = (_heads(part, attn.num_heads) for part in attn.c_attn(tokens).split(attn.split_size, 2))
        return _joined(past.attention(query, key, value, attn.attn_dropout.p if attn.training else 0.0))

    @property
    def last(self) -> Any:
        return self.module.attn.c_proj

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = x + self.module.attn.resid_dropout(y)
        return result

    def feed(self, h: Tensor) -> Tensor:
        normed: Tensor = self.module.ln_2(h)
        return normed

    def dense(self, tokens: Tensor) -> Tensor:
        made: Tensor = self.module.mlp(tokens)
        return made


class MixtralBlock(Block):
    """A block of transformers' Mixtral: its heads are turned by their positions, and some share keys and values."""

    @property
    def mixture(self) -> MixtureLayer | None:
        found = self.module.mlp
        return found if isinstance(found, MixtureLayer) else None

    def enter(self, x: Tensor) -> Tensor:
        normed: Tensor = self.module.input_layernorm(x)
        return normed

    def heads(self, tokens: Tensor, past: Past) -> Tensor:
        attn = self.module.self_attn
        query, key, value = (
            product(tokens).view(*tokens.shape[:2], -1, attn.head_dim).transpose(1, 2)
            for product in (attn.q_proj, attn.k_proj, attn.v_proj)
        )
        assert past.rotary is not None
        cosines, sines = (part.unsqueeze(1) for part in past.rotary)
        query, key = (part * cosines + _turned(part) * sines for part in (query, key))
        return _joined(past.attention(query, key, value, attn.attention_dropout if attn.training else 0.0))

    @property
    def last(self) -> Any:
        return self.module.self_attn.o_proj

    def feed(self, h: Tensor) -> Tensor:
        normed: Tensor = self.module.post_attention_layernorm(h)
        return normed

    def dense(self, tokens: Tensor) -> Tensor:
        made: Tensor = self.module.mlp(tokens)
        return made


class BertBlock(Block):
    """A block of transformers' BERT: norms come behind the residuals, and every token looks at all others."""

    causal = False

    @property
    def mixture(self) -> MixtureLayer | None:
        found = self.module.intermediate
        return found if isinstance(found, MixtureLayer) else None

    def enter(self, x: Tensor) -> Tensor:
        return x

    def heads(self, tokens: Tensor, past: Past) -> Tensor:
        attn = self.module.attention.self
        products = (attn.query, attn.key, attn.value)
        query, key, value = (_heads(product(tokens), attn.num_attention_heads) for product in products)
        return _joined(past.attention(query, key, value, attn.dropout.p if attn.training else 0.0))

    @property
    def last(self) -> Any:
        return self.module.attention.output.dense

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        output = self.module.attention.output
        result: Tensor = output.LayerNorm(output.dropout(y) + x)
        return result

    def feed(self, h: Tensor) -> Tensor:
        return h

    def dense(self, tokens: Tensor) -> Tensor:
        made: Tensor = self.module.intermediate(tokens)
        return made

    def close(self, h: Tensor, y: Tensor) -> Tensor:
        # Of a dense block this is the second product too.
        result: Tensor = self.module.output(y, h)
        return result


def _heads(x: Tensor, number: int) -> Tensor:
    """Return [B, S, M] as [B, H, S, D]."""
    return x.view(*x.shape[:2], number, -1).transpose(1, 2)


def _joined(heads: Tensor) -> Tensor:
    """Return [B, H, S, D] as [B, S, M]."""
    return heads.transpose(1, 2).flatten(2)


def _turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


_KINDS = {"GPT2Block": Gpt2Block, "MixtralDecoderLayer": MixtralBlock, "BertLayer": BertBlock}


def blocks_of(model: nn.Module) -> list[Block]:
    """Return the blocks of a model up to the last one with a mixture, in the order they run; none where they are of kinds
    that are not known here.
    """
    found: list[Block] = []
    for module in model.modules():
        if isinstance(module, language.Block):
            found.append(Block(module))
        elif type(module).__name__ in _KINDS and type(module).__module__.startswith("transformers."):
            found.append(_KINDS[type(module).__name__](module))
    while found and found[-1].mixture is None:
        found.pop()
    return found
