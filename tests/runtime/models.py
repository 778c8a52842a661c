"""Models for the runtime's tests: plain ones, and odd ones that break engines."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Tied(nn.Module):
    """An embedding whose weight is also the head's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.embed((x[:, 0].abs() * 7).long() % 11))))


class Twice(nn.Module):
    """A module that a forward enters twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.shared = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.shared(torch.tanh(self.first(x))))
        return self.last(torch.tanh(self.shared(x)))


class Unused(nn.Module):
    """A module whose parameters never get a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.idle = nn.Linear(4, 4)
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)))


class Frozen(nn.Module):
    """A module whose parameters want no gradient, and a bias that is frozen alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.middle = nn.Linear(5, 5)
        self.last = nn.Linear(5, 3)
        self.middle.requires_grad_(False)
        self.last.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.middle(torch.relu(self.first(x)))))


class Convolved(nn.Module):
    """Convolution and batch norm: buffers beside parameters, weights in another memory order."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1, bias=False).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(4)
        self.last = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x.view(-1, 1, 2, 3))))
        return self.last(x.flatten(1))


class Mixed(nn.Module):
    """Parameters of two dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.wide = nn.Linear(5, 5).double()
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.wide(torch.tanh(self.first(x)).double())).float())


class Attention(nn.Module):
    """A module that reads the parameters of a child it never calls (torch's attention does this with `out_proj`)."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(6, 2, batch_first=True)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None, :]
        return self.last(self.attend(x, x, x, need_weights=False)[0][:, 0])


def plain() -> nn.Module:
    """Three layers of uneven sizes, one without bias."""
    return nn.Sequential(nn.Linear(6, 17), nn.Tanh(), nn.Linear(17, 9, bias=False), nn.Tanh(), nn.Linear(9, 3))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": plain, "tied": Tied, "twice": Twice, "unused": Unused, "frozen": Frozen, "convolved": Convolved, "mixed": Mixed,
    "attention": Attention,
}  # fmt: skip


def build(name: str, seed: int = 0) -> nn.Module:
    """Return model `name`, with the same parameters for the same seed."""
    torch.manual_seed(seed)
    return MODELS[name]()


def batch(rank: int, step: int, size: int = 4) -> tuple[Tensor, Tensor]:
    """Return inputs [size, 6] and targets [size] of one rank and step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(size, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator)
