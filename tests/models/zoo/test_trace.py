"""Tracing a model: the order modules ran and gradients came, FLOPs, attention's products, tied and unused tensors."""

from __future__ import annotations

import torch
from torch import nn

from orch.models.profile import Profile
from orch.models.zoo.trace import trace


class Small(nn.Module):
    """Registration order is not forward order; the head is tied to the embedding, one layer gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.embed = nn.Embedding(5, 8)
        self.qkv = nn.Linear(8, 24)
        self.head = nn.Linear(8, 5, bias=False)
        self.head.weight = self.embed.weight
        self.unused = nn.Linear(8, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        query, key, value = self.qkv(hidden).view(*tokens.shape, 3, 8).unsqueeze(1).unbind(3)
        hidden = nn.functional.scaled_dot_product_attention(query, key, value)[:, 0]
        self.unused(hidden)
        return self.head(self.norm(hidden))


def profile_on(device: str) -> Profile:
    with torch.device(device):
        model, tokens = Small(), torch.zeros(2, 3, dtype=torch.long)
    return trace(model, lambda built: built(tokens).sum(), batch=2, name="small", source="a test")


def test_a_trace_says_what_ran_and_when_gradients_came() -> None:
    with torch.device("cpu"):
        model, tokens = Small(), torch.zeros(2, 3, dtype=torch.long)
    profile = trace(model, lambda built: built(tokens).sum(), batch=2, name="small", source="a test")
    assert [module.name for module in profile.modules] == [
        "embed", "qkv", "#scores", "#values", "unused", "norm", "head",
    ]  # fmt: skip
    assert profile.ready_order == ("norm.weight", "norm.bias", "qkv.bias", "qkv.weight", "embed.weight")
    assert profile.never_ready == ("unused.weight", "unused.bias")
    assert profile.tensor("embed.weight").modules == ("embed", "head")
    flops = {module.name: module.flops for module in profile.modules}
    assert flops == {
        "embed": 0, "qkv": 2 * 3 * 8 * 24, "#scores": 2 * 3 * 3 * 8, "#values": 2 * 3 * 3 * 8,
        "unused": 2 * 3 * 8 * 2, "norm": 8 * 3 * 8, "head": 2 * 3 * 8 * 5,
    }  # fmt: skip
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_meta_device_tells_the_same() -> None:
    assert profile_on("meta") == profile_on("cpu")


def test_a_convolution_and_a_layer_called_twice() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, groups=2))

    def step(built: nn.Module) -> torch.Tensor:
        first, second = built.children()
        return second(second(first(torch.zeros(2, 3, 5, 5)))).sum()

    profile = trace(model, step, batch=2, name="twice", source="a test")
    assert profile.module("0").flops == 2 * 25 * 4 * 27
    assert (profile.module("1").calls, profile.module("1").flops) == (2, 2 * 2 * 25 * 4 * 18)


class ClassToken(nn.Module):
    """Holds a parameter beside a child, as vision transformers do; one more is used by nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Parameter(torch.zeros(3))
        self.token = nn.Parameter(torch.zeros(4))
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x) + self.token)


def test_a_parameter_beside_children_counts_for_the_module_around_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), ClassToken())
    profile = trace(model, lambda built: built(torch.ones(2, 4)).sum(), batch=2, name="t", source="a test")
    assert [module.name for module in profile.modules] == ["0", "1", "1.first", "1.last"]
    assert profile.tensor("1.token").modules == ("1",)
    assert profile.module("1").flops == 0
    assert profile.never_ready == ("1.idle",)


def test_torchs_own_attention_is_counted_where_it_runs() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Linear(4, 8), layer)
    profile = trace(model, lambda built: built(torch.ones(2, 5, 4)).sum(), batch=2, name="t", source="a test")
    names = [module.name for module in profile.modules]
    attention = ["1.self_attn", "1.self_attn#scores", "1.self_attn#values"]
    assert names == ["0", *attention, "1.norm1", "1.linear1", "1.linear2", "1.norm2"]
    assert profile.module("1.self_attn").flops == 2 * 5 * 8 * 8 * 4
    assert profile.module("1.self_attn#scores").flops == 2 * 5 * 5 * 8
    assert profile.tensor("1.self_attn.out_proj.weight").modules == ("1.self_attn",)
    assert set(profile.ready_order) == {tensor.name for tensor in profile.tensors}
