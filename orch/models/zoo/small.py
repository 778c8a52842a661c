"""Small models that run. Shapes: B batch, C channels, S side, N inputs, K classes; outputs are logits [B, K]."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from orch.models.small import MlpKnobs, ResNetDigitsKnobs, TinyTensorsKnobs, blocks

Part = Callable[[torch.Tensor], torch.Tensor]


def through(parts: Iterable[Part], x: torch.Tensor) -> torch.Tensor:
    """Return what `parts` make of `x`, one after another."""
    for part in parts:
        x = part(x)
    return x


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, outputs, 3, stride)
        self.norm1 = _norm(outputs)
        self.conv2 = _convolution(outputs, outputs, 3)
        self.norm2 = _norm(outputs)
        self.shortcut = _convolution(inputs, outputs, 1, stride) if stride != 1 else None
        self.shortcut_norm = _norm(outputs) if stride != 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output [B, outputs, S / stride, S / stride]."""
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        if self.shortcut is not None and self.shortcut_norm is not None:
            x = self.shortcut_norm(self.shortcut(x))
        return F.relu(x + y)


def _norm(channels: int) -> nn.Module:
    # Not batch normalisation: its running statistics are state outside the gradients, another on each rank.
    return nn.GroupNorm(1, channels)


class ResNetDigits(nn.Module):
    """Stem, residual blocks, mean over pixels, head: images [B, C, S, S] -> logits [B, K]."""

    def __init__(self, knobs: ResNetDigitsKnobs) -> None:
        super().__init__()
        shapes = blocks(knobs)
        self.stem = _convolution(knobs.channels, knobs.width, 3)
        self.norm = _norm(knobs.width)
        self.blocks = nn.ModuleList(Block(*shape) for shape in shapes)
        self.head = nn.Linear(shapes[-1][1], knobs.num_classes)

    def parts(self) -> list[Part]:
        """Return what it consists of, one after another."""
        return [
            lambda images: F.relu(self.norm(self.stem(images))),
            *self.blocks,
            lambda x: self.head(x.mean(dim=(2, 3))),
        ]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return through(self.parts(), images)


class Mlp(nn.Module):
    """Hidden layers with ReLU, head: [B, ...] flattened to [B, N] -> logits [B, K]."""

    def __init__(self, knobs: MlpKnobs) -> None:
        super().__init__()
        sizes = [knobs.inputs, *knobs.widths]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.head = nn.Linear(sizes[-1], knobs.num_classes)

    def parts(self) -> list[Part]:
        """Return what it consists of, one after another."""
        return [*(partial(self._layer, layer) for layer in self.hidden), self.head]

    def _layer(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return F.relu(layer(x.flatten(1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return through(self.parts(), x)


class TinyTensors(nn.Module):
    """Residual tanh layers without biases, so that depth trains: [B, ...] flattened to [B, N] -> logits [B, K]."""

    def __init__(self, knobs: TinyTensorsKnobs) -> None:
        super().__init__()
        sizes = [knobs.inputs, *[knobs.width] * (knobs.layers - 1)]
        self.hidden = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(sizes))
        self.head = nn.Linear(knobs.width, knobs.num_classes, bias=False)
        self.scale = len(self.hidden) ** -0.5

    def parts(self) -> list[Part]:
        """Return what it consists of, one after another."""
        first, *rest = self.hidden
        return [
            lambda x: torch.tanh(first(x.flatten(1))),
            *(partial(self._layer, layer) for layer in rest),
            self.head,
        ]

    def _layer(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.scale * torch.tanh(layer(x))
        return result

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return through(self.parts(), x)


def resnet_digits(knobs: ResNetDigitsKnobs) -> nn.Module:
    """Return the small residual net."""
    return ResNetDigits(knobs)


def mlp(knobs: MlpKnobs) -> nn.Module:
    """Return the perceptron."""
    return Mlp(knobs)


def tiny_tensors(knobs: TinyTensorsKnobs) -> nn.Module:
    """Return the deep, narrow net."""
    return TinyTensors(knobs)
