"""Attention whose heads are split over ranks: its first product and its last, which meet the other ranks.

A runtime gives both a `path`: that of the first leaves its input as it is and adds up its gradients over the ranks, that of
the last adds up its output. Shapes: [..., I] -> [..., O]; of a shared product this rank holds some of O (the first) or of
I (the last).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from orch.errors import RunError
from orch.models.zoo.language import Block

Path = Callable[[Tensor], Tensor]


class Shared(nn.Module):
    """A product of which this rank holds a share. `across`: the weight is kept [I, O], as GPT-2 has it, not [O, I]."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, across: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone())
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())
        self.across = across
        self.path: Path | None = None

    def met(self, x: Tensor) -> Tensor:
        """Return `x` as the ranks make it together; raises RunError where nobody said how."""
        if self.path is None:
            raise RunError("a share of attention computes nothing without the others: no engine runs it", code="E622")
        return self.path(x)

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return the product of `x`."""
        return F.linear(x, self.weight.T if self.across else self.weight, bias)


class First(Shared):
    """The product in front of attention: queries, keys and values of this rank's heads."""

    def forward(self, x: Tensor) -> Tensor:
        """Return this rank's part [..., O] of the outputs."""
        return self.product(self.met(x), self.bias)


class Last(Shared):
    """The product behind attention: a part of the sum over all heads. The bias comes once, behind the sum.

    `parted` does product and sum at once, part by part, where a runtime has a plan for that.
    """

    parted: Path | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum over the ranks."""
        y = self.met(self.product(x, None)) if self.parted is None else self.parted(x)
        return y if self.bias is None else y + self.bias.to(y.dtype)


def share(model: nn.Module, place: int, ranks: int) -> None:
    """Keep the `place`-th of `ranks` equal shares of every attention's heads. Raises RunError for models it knows not."""
    if ranks == 1:
        return
    found = 0
    for module in list(model.modules()):
        if isinstance(module, Block):
            _share_block(module, place, ranks)
        elif type(module).__name__ == "GPT2Attention":
            _share_gpt2(module, place, ranks)
        else:
            continue
        found += 1
    if not found:
        raise RunError("attention of this model cannot be shared out when it runs", code="E622",
                       hint="char-moe and gpt2-moe can; any with parallel.tensor=1, or --simulate")  # fmt: skip


def shared_parameters(model: nn.Module) -> frozenset[str]:
    """Return the names of the parameters of which this rank holds a share."""
    found = []
    for name, module in model.named_modules():
        if isinstance(module, Shared):
            found += [f"{name}.weight", *([f"{name}.bias"] if isinstance(module, First) else [])]
    return frozenset(found)


def _share_block(block: Block, place: int, ranks: int) -> None:
    hidden = block.out.in_features
    size = hidden // ranks
    weight = block.qkv.weight.view(3, hidden, hidden).narrow(1, place * size, size).reshape(3 * size, hidden)
    bias = block.qkv.bias.view(3, hidden).narrow(1, place * size, size).reshape(-1)
    out: Any = Last(block.out.weight.narrow(1, place * size, size), block.out.bias)
    qkv: Any = First(weight, bias)
    block.qkv, block.out, block.num_heads = qkv, out, block.num_heads // ranks


def _share_gpt2(attention: Any, place: int, ranks: int) -> None:
    hidden = attention.embed_dim
    size = hidden // ranks
    weight, bias = attention.c_attn.weight, attention.c_attn.bias
    weight = torch.cat([part.narrow(1, place * size, size) for part in weight.split(hidden, 1)], 1)
    bias = torch.cat([part.narrow(0, place * size, size) for part in bias.split(hidden)])
    last = attention.c_proj
    attention.c_attn = First(weight, bias, across=True)
    attention.c_proj = Last(last.weight.narrow(0, place * size, size), last.bias, across=True)
    attention.split_size, attention.num_heads = size, attention.num_heads // ranks
